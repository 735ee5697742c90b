"""The time from boot to first job: its parts, and the ratio of a baked image."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from infra.engine.stop import Stop
from infra.targets.aws.rehearse import first_job
from infra.targets.aws.rehearse.first_job import FirstJob, check_baked_node, compare_images, measure_first_job

# At speed 20, 2 s of sleep are 40 s of package installation.
INSTANCES: Any = SimpleNamespace(clock=SimpleNamespace(speed=20.0))
SLEPT_S = 2.0


def make_node(ready_at: float, boot_s: float, container_boot_s: float = 0.0) -> Any:
    """Return a node that was launched at 100 s and pending for 20 s of AWS."""
    return SimpleNamespace(
        launched_at=100.0, pending_s=20.0, boot_s=boot_s, ready_at=ready_at, container_boot_s=container_boot_s
    )


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_job, "read_slept", lambda *_: SLEPT_S)


def test_the_slowest_node_counts_without_its_wait_for_others() -> None:
    # The first boots 1 s here and 6 s pass after boot and sleep; the second boots 3 s here, and 5 s pass.
    nodes = [make_node(110.0, boot_s=20), make_node(111.0, boot_s=60)]
    measured = measure_first_job(INSTANCES, nodes, submitted_at=99.0, ended_at=112.0)
    assert measured == FirstJob(boot_s=60.0, install_s=40.0, other_s=5.0 + 1.0)
    alone = measure_first_job(INSTANCES, nodes[:1], submitted_at=99.0, ended_at=112.0)
    assert alone == FirstJob(boot_s=20.0, install_s=40.0, other_s=6.0 + 2.0)


def test_the_boot_of_the_container_does_not_count_besides_that_of_aws() -> None:
    nodes = [make_node(110.0, boot_s=20, container_boot_s=2.5)]
    measured = measure_first_job(INSTANCES, nodes, submitted_at=99.0, ended_at=112.0)
    assert measured == FirstJob(boot_s=20.0, install_s=40.0, other_s=6.0 + 2.0 - 2.5)


def test_nodes_that_existed_before_the_job_are_measured_until_they_were_ready() -> None:
    measured = measure_first_job(INSTANCES, [make_node(110.0, boot_s=20)], submitted_at=500.0, ended_at=510.0)
    assert measured == FirstJob(boot_s=20.0, install_s=40.0, other_s=6.0)


def test_the_ratio_does_not_depend_on_the_luck_of_two_boots() -> None:
    unbaked, baked = FirstJob(boot_s=60, install_s=40, other_s=20), FirstJob(boot_s=20, install_s=0, other_s=10)
    assert compare_images(unbaked, baked) == (
        "boot to first job on AWS: 120 s (60 boot, 40 package installation, 20 other) from AWS's image, "
        "30 s (20 boot, 0 package installation, 10 other) from a baked image: "
        "25%; 58% with the same boot, 17% without it"
    )


def test_a_node_from_a_baked_image_must_be_ready_soon_after_its_boot() -> None:
    check_baked_node(FirstJob(boot_s=116, install_s=0, other_s=30))
    with pytest.raises(Stop, match=r"168 s \(116 boot, 0 package installation, 52 other\), at most 30 s are allowed"):
        check_baked_node(FirstJob(boot_s=116, install_s=0, other_s=52))
