"""Checks of every host over SSH before anything is changed: facts, judgements that are pure, and one report."""
