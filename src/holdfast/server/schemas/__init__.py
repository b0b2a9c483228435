"""The JSON of the HTTP interface: request bodies, responses, stream frames, and how values become JSON."""
