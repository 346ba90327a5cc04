"""Data order, loading and trainers."""
