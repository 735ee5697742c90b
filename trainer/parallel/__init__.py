"""Spreading a model over ranks with torch's own means, applied from outside the model."""
