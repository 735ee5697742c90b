"""Predict the whole run from when its machines are available: failures, checkpoints, cost, electricity."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import date

from cluster.catalog.prices import instance_price
from cluster.spec import ClusterSpec, NodeGroup
from simulator.machines.job_machines import JobMachines
from simulator.models import build_model
from simulator.parameters import checkpoint_gb
from simulator.search.option import busy, conditions
from simulator.step.prediction import Prediction
from simulator.whole_run import cost, energy, goodput
from simulator.whole_run.goodput import Conditions, Outlook, Work
from trainer.config.schema import Config

HOUR_S = 3600.0
PLAIN = ClusterSpec(name="plain", target="", groups={"gpu": NodeGroup(count=1)})
"""Used without a stack: an unknown filesystem, and the default timeouts."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a run in US dollars, with an interval."""

    usd: float
    low: float
    high: float
    priced_on: date
    of: str
    """What the cost includes."""


@dataclass(frozen=True, kw_only=True)
class WholeRun:
    """The whole run, with its failures and checkpoints."""

    steps: int
    outlook: Outlook
    best_every: int
    """Steps between checkpoints for the shortest run."""
    gain: float
    """Share of the time that this interval would save."""
    checkpoint_gb: float
    cost: Cost | None
    """None if there is no price."""
    kwh: float | None


def predict_whole_run(config: Config, machines: JobMachines, prediction: Prediction) -> WholeRun:
    """Return time, cost and electricity of a run whose step is predicted."""
    gb = checkpoint_gb(build_model(config.model, config.data.seq_len), config.optimizer)
    work = Work(steps=config.steps, step_s=prediction.step_s, low_s=prediction.low_s, high_s=prediction.high_s)
    run_conditions = _conditions(machines, gb, prediction.step_s)
    # Without checkpoints, a failure costs all progress.
    every = min(config.checkpoint.interval or config.steps, config.steps)
    planned, best = (
        goodput.predict_outlook(run_conditions, work, every=every),
        goodput.predict_outlook(run_conditions, work),
    )
    return WholeRun(
        steps=config.steps,
        outlook=planned,
        best_every=best.interval_steps,
        gain=1 - best.wall_s / planned.wall_s,
        checkpoint_gb=gb,
        cost=_cost(machines, planned, config.checkpoint.keep * gb),
        kwh=_kwh(machines, planned, prediction),
    )


def _conditions(machines: JobMachines, gb: float, step_s: float) -> Conditions:
    if machines.of_catalog:
        return conditions(machines.spec or PLAIN, gb, machines.system, machines.purchase, step_s)
    saves = machines.profile.world(machines.nodes, machines.per_node)["checkpoint"] if machines.profile else {}
    return Conditions(save_s=gb / saves["wait_gb_s"], write_s=gb / saves["write_gb_s"])


def _cost(machines: JobMachines, outlook: Outlook, stored_gb: float) -> Cost | None:
    if not machines.of_catalog or math.isinf(outlook.wall_s):
        return None
    if machines.spec is None:
        return _machine_cost(machines, outlook)
    spec, tariff = machines.spec, cost.tariff(machines.spec, machines.group, machines.sheet.name, machines.purchase)
    if tariff is None:
        return None

    def usd(seconds: float) -> float:
        return tariff.usd(machines.nodes, seconds) + cost.stored_usd(spec, stored_gb, seconds)

    wall, low, high = (usd(seconds) for seconds in (outlook.wall_s, outlook.low_s, outlook.high_s))
    return Cost(usd=wall, low=low, high=high, priced_on=tariff.priced_on, of=f"the whole cluster, {machines.purchase}")


def _machine_cost(machines: JobMachines, outlook: Outlook) -> Cost | None:
    price = instance_price(machines.sheet.name, "us-east-1", spot=False)
    if price is None:
        return None
    hourly = machines.nodes * price.usd
    wall, low, high = (hourly * seconds / HOUR_S for seconds in (outlook.wall_s, outlook.low_s, outlook.high_s))
    of = "the machines alone, on-demand in us-east-1"
    return Cost(usd=wall, low=low, high=high, priced_on=price.on, of=of)


def _kwh(machines: JobMachines, outlook: Outlook, prediction: Prediction) -> float | None:
    if not machines.of_catalog or math.isinf(outlook.wall_s):
        return None
    used = replace(machines.system, gpus_per_node=machines.per_node)
    return energy.kwh(used, outlook.wall_s, busy(prediction) * outlook.goodput)
