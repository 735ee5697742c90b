"""The end of a cluster in orders drawn from a seed: machines end themselves while Slurm still launches others.

Every machine ends by its own clock, the controller too, and one that boots later ends at once. Until the controller has
ended, the real power programs may take an end for a loss. `rehearse --scenario end` has the services of the machines.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.moto_server import Moto
from tests.seeds import check_orders, list_seeds
from tests.slurm.power.cluster import Clock, FakeSlurm, make_context, make_fleet, with_retry_s
from tests.slurm.power.drawn_order import OFF, DrawnOrder, Job, run_seeds

SEEDS_BY_DAY, DIFFERENT = 1, 20
HOURS_S = 2 * 3600.0
# The end meets first boots, jobs, idle nodes and suspensions; jobs are submitted until shortly after it.
ENDS_FROM_S, ENDS_WITHIN_S, JOBS_AT_MOST_S, LATE_JOBS_S = 200.0, 1200.0, 400.0, 60.0
# How often a machine looks at its clock, and how long systemd lets its services stop.
CLOCK_S, SHUTDOWN_S = 5.0, 60.0
# The longest boot of the table of delays, in which a machine that was launched at the last moment cannot end.
LONGEST_BOOT_S = 30.0 + 240.0
PAIRS = [
    ("controller ends", "gpu-1 ends"),
    ("controller ends", "gpu-3 ends"),
    ("gpu-1 ends", "gpu-3 ends"),
    ("end", "gpu-1 launched"),
    ("end", "gpu-1 swept"),
    ("end", "gpu-1 up"),
    ("end", "job on gpu-1 starts"),
    ("end", "job on gpu-1 ends"),
]


@dataclass
class EndingOrder(DrawnOrder):
    """A cluster that ends at a drawn time."""

    ends_at: float = 0.0
    """Time on the cluster's clock."""
    controller_ended_at: float | None = None
    late_launches: list[str] = field(default_factory=list)
    """Nodes that were launched after the controller had ended."""
    ended_at: float = 0.0
    """When the last machine ended."""

    def begin(self) -> None:
        """Draw when the cluster and its controller end."""
        self.ends_at = self.began + self.draws.uniform(ENDS_FROM_S, ENDS_WITHIN_S)
        self.after(self.ends_at - self.began, partial(self.events.append, "end"))
        self.after(self.ends_at - self.began + self._draw_shutdown(), self._end_controller)

    def _draw_shutdown(self) -> float:
        return self.draws.uniform(0, CLOCK_S) + self.draws.uniform(0, SHUTDOWN_S)

    def _end_controller(self) -> None:
        self.controller_ended_at = self.clock.now()
        self.events.append("controller ends")

    def _launch(self, raw: Any) -> None:
        super()._launch(raw)
        name = self.launches[-1]
        if self.controller_ended_at is not None:
            self.late_launches.append(name)
        key = f"{name}#{self.launches.count(name)}"
        boot_s = sum(self._delays.draw(kind, key) for kind in ("instance pending", "large operating system boot"))
        self.after(max(boot_s, self.ends_at - self.clock.now()) + self._draw_shutdown(), partial(self._end, name, raw))

    def _end(self, name: str, raw: Any) -> None:
        if self.find(name) is raw:
            raw._state.name, raw._state.code = "terminated", 48
            self.events.append(f"{name} ends")
            self.ended_at = self.clock.now()

    def _sweep(self) -> None:
        if self.controller_ended_at is None:
            super()._sweep()

    def _schedule(self) -> None:
        if self.controller_ended_at is None:
            super()._schedule()

    def _resume(self, job: Job, nodes: Any) -> None:
        if self.controller_ended_at is None:
            super()._resume(job, nodes)

    def _give_up(self, job: Job, attempt: int) -> None:
        if self.controller_ended_at is None:
            super()._give_up(job, attempt)

    def _suspend(self, node: str) -> None:
        if self.controller_ended_at is None:
            super()._suspend(node)


def run_order(seed: int, aws: Moto, folder: Path) -> EndingOrder:
    """Submit three jobs at any time around the end, and wait until nothing happens any more."""
    # moto stamps machines with the real time.
    clock = Clock(time.time())
    slurm = FakeSlurm({f"gpu-{number}": OFF for number in range(1, 5)})
    order = EndingOrder(seed, make_context(with_retry_s(make_fleet(aws), 900), folder, slurm, clock), slurm, clock)
    order.begin()
    draws, until_s = order.draws, order.ends_at - order.began + LATE_JOBS_S
    order.jobs = [
        Job(nodes, draws.uniform(10, JOBS_AT_MOST_S), draws.uniform(0, until_s))
        for nodes in (("gpu-1", "gpu-2"), ("gpu-3", "gpu-4"), ("gpu-1", "gpu-3"))
    ]
    with order.connected():
        order.run(HOURS_S)
    return order


def check(order: EndingOrder) -> None:
    """Assert that nothing runs, that nothing was launched without a controller, and that the end took no longer."""
    text = f"seed {order.seed}: {order.events}"
    assert order.count_running() == 0, text
    assert order.late_launches == [], text
    assert order.controller_ended_at is not None, text
    last_s = order.controller_ended_at + LONGEST_BOOT_S + CLOCK_S + SHUTDOWN_S
    assert order.ended_at <= last_s, f"{order.ended_at - order.ends_at:.0f} s after the end; {text}"
    assert [mistake for mistake in order.mistakes if "twice" in mistake] == [], text


def test_end_orders(aws: Moto, tmp_path: Path) -> None:
    orders = run_seeds(list_seeds(SEEDS_BY_DAY), run_order, check, aws, tmp_path)
    check_orders(orders, PAIRS, DIFFERENT)
