"""Capabilities of GPUs and networks: data sheets, measured curves, and constants fitted to published runs."""
