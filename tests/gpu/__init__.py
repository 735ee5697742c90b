"""Tests that need a real GPU: run `make test-gpu` on a machine that has one."""
