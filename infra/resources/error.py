"""The error of a provider: the property, its value, what is wrong and the fix."""

from __future__ import annotations


class ResourceError(Exception):
    """An error whose text is complete, as Pulumi shows nothing else; `where` is the property path or empty."""

    def __init__(self, where: str, what: str, fix: str) -> None:
        super().__init__((f"{where}: " if where else "") + f"{what.rstrip('.')}. Fix: {fix.rstrip('.')}.")


class InUseError(ResourceError):
    """A resource cannot be removed yet: another one uses it, or the service is busy."""
