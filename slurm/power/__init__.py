"""Power saving: start and end machines as Slurm asks, and repair what went wrong in between.

This package decides when; a target's `Launcher` (launcher.py) does it.
"""
