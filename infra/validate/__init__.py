"""One validator per rule: what a spec asks for, against what can be."""

from infra.validate.host import EngineFacts
from infra.validate.issue import Issue, render
from infra.validate.rules import validate

__all__ = ["EngineFacts", "Issue", "render", "validate"]
