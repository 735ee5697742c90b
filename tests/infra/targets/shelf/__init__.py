"""A third target in one folder, whose machines are files."""
