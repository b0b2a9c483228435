"""Random histories on several stores at once, held against a model and against each other."""
