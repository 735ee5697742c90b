"""A machine on AWS that sets itself up: who it is, what it is to be, and word of how it went."""
