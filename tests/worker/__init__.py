"""Queued runs and live tails, without HTTP."""
