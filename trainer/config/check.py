"""Rules between settings: each names the numbers that clash and values near them that work."""

from __future__ import annotations

from trainer.config.problem import Problem
from trainer.config.schema import Config


def check(config: Config) -> list[Problem]:
    """What is wrong whatever the world looks like."""
    return []
