"""Photographs in, a checked edit dataset out: records, stages, recipes, executors and shards."""
