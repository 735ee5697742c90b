"""The steps, in the order in which a node goes through them."""
