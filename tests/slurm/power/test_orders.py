"""Orders drawn from a seed: launches, late listings, sweeps, boots, lost machines and suspends meet in any order.

The clock is not the real one, so delays have their full length.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from tests.moto_server import Moto
from tests.seeds import check_orders, list_seeds
from tests.slurm.power.cluster import TYPE, ZONES, Clock, FakeSlurm, make_context, make_fleet, with_retry_s
from tests.slurm.power.drawn_order import OFF, DrawnOrder, Job, run_seeds

SEEDS_BY_DAY, DIFFERENT = 1, 20
DAY_S = 4 * 3600.0
JOBS_AT_MOST_S, LOST_WITHIN_S = 400.0, 600.0
# EC2 lists some instances after much longer than the table says, as in the scenario `late-listing`.
LATE = 10.0
PAIRS = [
    ("gpu-1 up", "gpu-2 up"),
    ("gpu-1 up", "gpu-3 up"),
    ("gpu-1 listed", "gpu-1 swept"),
    ("gpu-2 listed", "gpu-1 swept"),
    ("gpu-1 lost", "gpu-1 up"),
    ("gpu-1 lost", "job on gpu-1 ends"),
    ("job on gpu-1 starts", "job on gpu-3 starts"),
    ("gpu-3 suspended", "job on gpu-1 ends"),
]


def run_order(seed: int, aws: Moto, folder: Path) -> DrawnOrder:
    """Run two jobs, lose a machine, and wait until everything is idle."""
    # moto stamps machines with the real time.
    clock = Clock(time.time())
    slurm = FakeSlurm({f"gpu-{number}": OFF for number in range(1, 5)})
    order = DrawnOrder(seed, make_context(with_retry_s(make_fleet(aws), 900), folder, slurm, clock), slurm, clock)
    draws = order.draws
    order.jobs = [
        Job(nodes, draws.uniform(10, JOBS_AT_MOST_S), draws.uniform(0, JOBS_AT_MOST_S))
        for nodes in (("gpu-1", "gpu-2"), ("gpu-3", "gpu-4"))
    ]
    order.after(draws.uniform(0, LOST_WITHIN_S), partial(order.lose, "gpu-1"))
    if draws.random() < 1 / 2:
        order.listing_factor = LATE
    if draws.random() < 1 / 4:
        aws.capacity |= {(TYPE, zone): 0 for zone in ZONES}
        order.after(draws.uniform(0, JOBS_AT_MOST_S), aws.capacity.clear)
    if draws.random() < 1 / 4:
        aws.lose_answer("RunInstances")
    with order.connected():
        order.run(DAY_S)
    return order


def check(order: DrawnOrder) -> None:
    """Assert that both jobs ran, that nothing ran twice, and that nothing is left."""
    text = f"seed {order.seed}: {order.events}"
    assert order.mistakes == [], text
    assert [job.state for job in order.jobs] == ["completed", "completed"], text
    assert order.count_running() == 0, text
    assert set(order.slurm.states.values()) == {OFF}, text


def test_orders(aws: Moto, tmp_path: Path) -> None:
    orders = run_seeds(list_seeds(SEEDS_BY_DAY), run_order, check, aws, tmp_path)
    check_orders(orders, PAIRS, DIFFERENT)
