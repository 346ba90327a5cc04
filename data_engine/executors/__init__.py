"""Where a stage runs on which shard."""
