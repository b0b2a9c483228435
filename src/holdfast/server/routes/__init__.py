"""The HTTP routes, one module per subject. A route parses, calls a session and renders; it has no rules of its own."""
