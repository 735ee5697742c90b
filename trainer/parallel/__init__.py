"""How one model's work is spread over ranks, with torch's own means, applied from outside the model."""
