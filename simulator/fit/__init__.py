"""Fit the model's constants to measurements, and compare its predictions with them."""
