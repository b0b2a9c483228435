"""Pure decisions: retention."""
