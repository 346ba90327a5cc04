"""Every model behind a small typed protocol, and the store their weights come from."""
