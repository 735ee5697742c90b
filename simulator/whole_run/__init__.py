"""Extend the prediction of one step to a whole run: failures and checkpoints, cost, electricity."""
