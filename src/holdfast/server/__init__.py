"""Sessions over HTTP: it parses, asks who asks, calls a session, and renders. No rules about sessions may enter."""
