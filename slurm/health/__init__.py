"""Health checks that run before each job and in between, for what breaks on GPU machines; registry.py lists them."""
