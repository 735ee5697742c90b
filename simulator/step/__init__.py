"""Predict the time of one optimizer step in closed form, and draw its timeline."""
