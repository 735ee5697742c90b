"""Nebius AI Cloud: machines of a GPU cluster on an InfiniBand fabric, which then are set up over SSH."""
