"""Decisions about facts: budgets, and later pruning and retention. Pure: no I/O, no clock, no threads."""
