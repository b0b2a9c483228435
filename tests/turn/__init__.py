"""Turns whose process dies."""
