"""Small real models whose weights ship inside registry packages: CPU, no model hub."""
