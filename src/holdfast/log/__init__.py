"""Facts and their folds: events, codec, chain, messages, view. Pure: no I/O, no clock, no threads."""
