"""The running jobs of a cluster, as its controller would list them."""

from __future__ import annotations

from collections.abc import Sequence


class Jobs:
    """The running jobs, by node and by user, and the release of Slurm."""

    def __init__(self, ids: dict[str, list[str]], release: str = "24.11") -> None:
        self._ids = ids
        self._release = release

    def release(self) -> str:
        return self._release

    def jobs(self, nodes: Sequence[str]) -> dict[str, list[str]]:
        return {node: ids for node, ids in self._ids.items() if node in nodes}

    jobs_of = jobs
