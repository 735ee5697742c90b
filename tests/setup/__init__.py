"""Tests of setup: tables of decisions, and actions with real processes, a real pip and the real Docker engine."""
