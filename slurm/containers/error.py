"""The error of a container that cannot start."""

from __future__ import annotations


class ContainerError(Exception):
    """A container cannot start: what is wrong, and how to fix it."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}. Fix: {fix}")
