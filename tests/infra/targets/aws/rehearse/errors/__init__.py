"""Tests of the rehearsal of errors."""
