"""Tests of setup: decisions as tables, actions on real processes, a real pip and the real engine."""
