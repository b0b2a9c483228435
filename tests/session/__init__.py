"""Pieces of a session."""
