"""What a provider says when it cannot do its work: the property, its value, what is in the way, the fix."""

from __future__ import annotations


class Problem(Exception):
    """Pulumi shows only the text of an exception, so all of it is in there. `where` is the property path, or empty."""

    def __init__(self, where: str, what: str, fix: str) -> None:
        super().__init__((f"{where}: " if where else "") + f"{what.rstrip('.')}. Fix: {fix.rstrip('.')}.")
