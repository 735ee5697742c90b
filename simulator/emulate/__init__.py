"""Emulate a job of many ranks in one process: real numbers from the trainer's own code, and a modelled clock."""
