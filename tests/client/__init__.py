"""The HTTP client against a real server."""
