"""Machines to predict for, and the rates to predict with, from a stack, an instance type or a measured profile."""
