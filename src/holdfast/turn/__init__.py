"""One turn: the loop yields effects, a driver performs them and appends the events. Knows stores and models."""
