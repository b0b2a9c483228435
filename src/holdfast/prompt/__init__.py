"""The prompt of a model call (instructions, facts, visible history, the turn), and how it is made to fit the window."""
