"""Predict the time, memory, cost and energy of a training run on a cluster before it is started."""
