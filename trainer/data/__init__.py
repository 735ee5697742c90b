"""Training data: where samples come from, in which order, and how they reach the device."""
