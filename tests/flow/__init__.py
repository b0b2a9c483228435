"""Several agents as one."""
