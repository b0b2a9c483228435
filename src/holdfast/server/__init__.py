"""Sessions over HTTP: parse a request, identify the caller, call a session, render. No rules about sessions here."""
