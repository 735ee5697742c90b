"""Issues as validators use them; they are defined beside the spec, which may import nothing of ours."""

from infra.spec.issue import Issue, SpecError, error, render, warning

__all__ = ["Issue", "SpecError", "error", "render", "warning"]
