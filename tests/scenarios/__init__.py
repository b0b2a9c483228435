"""The promises, each on every store, four ways, and over HTTP where it can travel."""
