"""A third target in one folder: its machines are files, a stub of a cloud."""
