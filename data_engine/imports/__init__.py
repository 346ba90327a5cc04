"""Finished edit datasets of others, read in their own layouts and stored in ours.

An import is a run like any other with three stages: `render` (here: rows in, pictures on the grid out), `verify` and
`emit`. Everything that works on a run works on it.
"""
