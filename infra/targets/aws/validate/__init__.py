"""Rules that a spec with target aws has to meet, one function per rule."""
