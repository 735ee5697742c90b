"""Health checks of GPU machines, run before each job and at intervals; registry.py lists them."""
