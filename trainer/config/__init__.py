"""The configuration of a run: dataclasses, YAML files and dotted overrides.

Imports no torch, so that planners and checks load it in milliseconds.
"""
