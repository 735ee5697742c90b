"""A job of many ranks in one process: the trainer's own numbers, and a modelled clock beside them."""
