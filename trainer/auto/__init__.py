"""Choosing strategy and micro-batch of a run by the memory they need."""
