"""One file per stage."""
