"""JSON Schemas of functions, and answers checked against a schema."""
