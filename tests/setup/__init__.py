"""Tests of setup: decisions as tables, and actions with real processes, a real pip and the real Docker engine."""
