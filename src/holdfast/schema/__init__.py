"""JSON Schema: schemas of functions and of structured output, and the check of values against a schema."""
