"""Background work: queued runs and their threads, live tails of logs, and the retention sweep. It knows no HTTP."""
