"""Collectives on point-to-point messages: each algorithm is a pure schedule in its own file, and one file runs them.

Start with `schedule` (what a schedule is) and `ring`; `operations` has the functions to call.
"""
