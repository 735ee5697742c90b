"""A third target in one folder: its machines are plain processes."""
