"""One validator per rule: what a spec asks for, against what can be."""

from cluster.spec.issue import Issue, render
from infra.validate.rules import validate

__all__ = ["Issue", "render", "validate"]
