"""One training run: session (start, resume, end), steps (the step loop) and saves (checkpoints while it trains)."""
