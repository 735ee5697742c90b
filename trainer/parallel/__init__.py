"""Spreading a model over ranks with torch's own parallelism, applied from outside the model."""
