"""How long one optimizer step takes: its parts in closed form, and its timeline."""
