"""The HTTP interface, on a real server over loopback."""
