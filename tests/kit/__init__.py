"""Real things for tests to break: a throw-away PostgreSQL server, and a proxy that loses replies. Knows no holdfast."""
