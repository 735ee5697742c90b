"""The hosts target: machines that somebody already owns, reached over SSH."""
