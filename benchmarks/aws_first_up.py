"""Compute what the GPU nodes of a new cluster on AWS cost before it is ready, for two orders of launching them.

This is arithmetic over list prices and estimated durations. That the program launches static nodes after the controller
is tested in tests/infra/targets/aws/build/test_order.py.

python -m benchmarks.aws_first_up [STACK FILE ...]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.figures import Figure, report
from cluster.catalog.prices import instance_price
from cluster.spec import ClusterSpec
from infra.targets.aws.spec import region_of
from infra.targets.registry import read_spec

REPO = Path(__file__).resolve().parent.parent
EXAMPLES = (REPO / "stacks" / "Pulumi.aws-p5en-lustre.yaml",)

Order = Literal["together", "after the controller"]
"""When static nodes are launched: with the controller, or once it has reported that it is ready."""


@dataclass(frozen=True)
class Phases:
    """Minutes that the phases of a first `up` take, from the launch of the controller on.

    AWS PCS documents a boot of 3 to 8 minutes, and 6 to 12 for a node that installs software at boot. None was measured
    in an account: the build of Slurm, the daemons and the environment are estimates for a controller with 2 cores.
    """

    controller_boot: float = 3.0
    slurm_build: float = 12.0
    daemons: float = 2.0
    environment: float = 5.0
    node: float = 8.0
    """Boot and set-up of a GPU node that waits for nothing."""
    gate: float = 1.0

    @property
    def controller(self) -> float:
        return self.controller_boot + self.slurm_build + self.daemons + self.environment


@dataclass(frozen=True)
class FirstUp:
    """The first `up` of a cluster with static nodes."""

    minutes: float
    """From the launch of the controller until the gate has passed."""
    billed_minutes: float
    """From the launch of the static nodes until the gate has passed."""
    idle_minutes: float
    """The part of `billed_minutes` in which static nodes wait for the controller."""
    usd_per_hour: float
    """Price of all static nodes."""

    @property
    def billed_usd(self) -> float:
        return self.usd_per_hour * self.billed_minutes / 60

    @property
    def idle_usd(self) -> float:
        return self.usd_per_hour * self.idle_minutes / 60


def predict_first_up(spec: ClusterSpec, order: Order, phases: Phases) -> FirstUp:
    """Return duration and cost of the first `up` if static nodes are launched in this order."""
    launched = 0.0 if order == "together" else phases.controller
    ready = max(launched + phases.node, phases.controller) + phases.gate
    billed = ready - launched
    return FirstUp(ready, billed, billed - phases.node - phases.gate, sum(_list_prices(spec)))


def make_figures(name: str, spec: ClusterSpec, phases: Phases) -> list[Figure]:
    """Return cost and duration of both orders."""
    before = predict_first_up(spec, "together", phases)
    after = predict_first_up(spec, "after the controller", phases)
    price = f"{before.usd_per_hour:.2f} USD per hour"
    return [
        Figure(f"{name}: idle GPU nodes, launched together", before.idle_usd, "USD", price),
        Figure(f"{name}: idle GPU nodes, launched after the controller", after.idle_usd, "USD", price),
        Figure(f"{name}: billed until ready, launched together", before.billed_usd, "USD", price),
        Figure(f"{name}: billed until ready, launched after the controller", after.billed_usd, "USD", price),
        Figure(f"{name}: up, launched together", before.minutes, "min"),
        Figure(f"{name}: up, launched after the controller", after.minutes, "min"),
    ]


def _list_prices(spec: ClusterSpec) -> Iterator[float]:
    """Yield the on-demand price of the static nodes of each group."""
    for group in spec.groups.values():
        count = group.count if group.count is not None else group.min or 0
        price = instance_price(group.instance_type or "", region_of(spec))
        if count and price:
            yield count * price.usd


def main() -> None:
    """Print the figures."""
    files = [Path(argument) for argument in sys.argv[1:]] or EXAMPLES
    figures = [figure for file in files for figure in make_figures(file.name.split(".")[1], read_spec(file), Phases())]
    print(report(figures))


if __name__ == "__main__":
    main()
