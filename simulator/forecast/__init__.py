"""One run of the trainer before it is made: its step, its memory, and what the whole of it takes."""
