"""Where machines come from: one folder per target, listed in registry.py."""
