"""The terminal: parse, call, render. No rules of its own; imports public names only."""
