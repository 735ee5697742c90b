"""Checkpoints: sharded, written beside training, published whole or not at all."""
