"""Two hundred nodes in one container: muster's queries read all of them, and no job is lost.

`python -m benchmarks.scale` does the same with a thousand, and compares times, too.
"""

from __future__ import annotations

import pytest

from benchmarks.scale import measure
from benchmarks.scale_cluster import emulated_cluster
from cluster import names
from cluster.spec.model import Software

NODES, JOBS = 200, 500


@pytest.mark.nightly
def test_queries_of_two_hundred_nodes_fit_into_run_command() -> None:
    """`measure` raises an error if a query misses a node, or if a job is lost."""
    with emulated_cluster(NODES, names.image(Software().slurm)) as cluster:
        rows = measure(cluster, JOBS)
    limited = [row for row in rows if row.limit_characters]
    assert len(limited) >= 4
    assert [row.what for row in limited if row.characters >= row.limit_characters] == []
