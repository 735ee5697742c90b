"""The rules on cluster specs: each one is a function that yields the issues of a spec."""

from cluster.spec.issue import Issue, render
from infra.validate.registry import validate

__all__ = ["Issue", "render", "validate"]
