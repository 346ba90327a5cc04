"""One file per edit type."""
