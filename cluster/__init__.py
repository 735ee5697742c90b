"""Contracts and vocabulary: the typed description, the inventory, names, and the catalog. Imports nothing of ours."""
