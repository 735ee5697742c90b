"""The local target: nodes are Docker containers on this machine."""

from infra.targets.local.target import LocalTarget

__all__ = ["LocalTarget"]
