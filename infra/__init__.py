"""From a typed description to machines that exist."""
