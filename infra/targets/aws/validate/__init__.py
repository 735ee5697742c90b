"""Rules for specs with target aws, a function each."""
