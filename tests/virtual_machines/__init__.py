"""Machines with kernels of their own, on a network of their own, for nightly tests."""
