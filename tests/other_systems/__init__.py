"""holdfast on Windows and macOS, simulated on Linux."""
