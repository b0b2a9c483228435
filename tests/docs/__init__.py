"""Every code block of the documentation runs."""
