"""The command line, run as a process."""
