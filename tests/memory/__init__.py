"""Memories: kept, found, learned from sessions, erased."""
