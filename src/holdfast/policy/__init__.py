"""Pure decisions: budgets, pruning, summaries, retention.

Pure: no I/O, no clock, no threads.
"""
