"""Releases: what they contain, whether it has known vulnerabilities, the archive and its signature."""
