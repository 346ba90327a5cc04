"""From dataset shards to micro-batches: index, order, reading, weights, cache."""
