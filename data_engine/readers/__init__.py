"""Low-level readers of what labs store photographs in: files on any file system, tars, tables and JSON."""
