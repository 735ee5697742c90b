"""Compressed averages of gradients over a group of ranks, one algorithm per file; docs/compression.md compares them."""
