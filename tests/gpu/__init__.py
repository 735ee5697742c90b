"""Tests on a real GPU, which `make test` has not: `make test-gpu` on a machine with one."""
