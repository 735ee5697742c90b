"""Benchmarks that print each figure next to a reference from the same run."""
