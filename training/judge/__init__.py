"""Training of judges: the data, how sequences are packed, the losses, and the trainer."""
