"""Find silent data corruption: replay a step on other ranks, compare bits, and name the rank that is wrong."""
