"""The command line, through the front door."""
