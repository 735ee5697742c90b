"""The contracts and the vocabulary: the typed description, the inventory, names, the catalog."""
