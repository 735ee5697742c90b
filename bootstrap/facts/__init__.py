"""What is: read from a node in one round trip, parsed into plain data."""
