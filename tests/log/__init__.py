"""The pure values and folds of the log."""
