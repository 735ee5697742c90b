"""Checkpoints: sharded over the ranks, written while training continues, published completely or not at all."""
