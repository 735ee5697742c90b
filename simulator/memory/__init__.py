"""Predict the memory that one GPU needs, and find layouts that need less."""
