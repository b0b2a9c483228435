"""JSON Schema: of functions, of answers, and the check."""
