"""Performing effects and appending what came of them. Knows stores and models, never sessions or servers."""
