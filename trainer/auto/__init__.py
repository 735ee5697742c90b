"""Choosing strategy and micro-batch by memory: measured once, decided by pure functions, the same on every rank."""
