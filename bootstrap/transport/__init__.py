"""Transports: run scripts on a node over SSH, or on this machine."""
