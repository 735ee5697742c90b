"""Whole life cycles with the real Pulumi engine and a test plugin, against moto or a real account."""
