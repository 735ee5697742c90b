"""The whole of a run once its machines are there: failures, checkpoints, money by dated prices, electricity."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import date

from cluster.catalog.prices import instance_price
from cluster.spec import ClusterSpec, NodeGroup
from simulator.machines.requested import On
from simulator.models import build_model
from simulator.parameters import checkpoint_gb
from simulator.search.option import busy, conditions
from simulator.step.prediction import Prediction
from simulator.whole_run import cost, energy, goodput
from simulator.whole_run.goodput import Conditions, Outlook, Work
from trainer.config.schema import Config

HOUR = 3600.0
PLAIN = ClusterSpec(name="plain", target="", groups={"gpu": NodeGroup(count=1)})
"""Where no stack is named: a filesystem of which nothing is known, and the usual timeouts."""


@dataclass(frozen=True, kw_only=True)
class Money:
    usd: float
    low: float
    high: float
    priced_on: date
    of: str
    """What is in it."""


@dataclass(frozen=True, kw_only=True)
class WholeRun:
    steps: int
    outlook: Outlook
    best_every: int
    """Steps between checkpoints that would take the least time."""
    gain: float
    """Share of the time that this would save."""
    checkpoint_gb: float
    money: Money | None
    """None is not known."""
    kwh: float | None


def whole_run(config: Config, on: On, prediction: Prediction) -> WholeRun:
    gb = checkpoint_gb(build_model(config.model, config.data.seq_len), config.optimizer.name)
    work = Work(steps=config.steps, step_s=prediction.step_s, low_s=prediction.low_s, high_s=prediction.high_s)
    meets = _conditions(on, gb, prediction.step_s)
    # Without any checkpoint a failure costs all that was done.
    every = min(config.checkpoint.every or config.steps, config.steps)
    found, best = goodput.outlook(meets, work, every=every), goodput.outlook(meets, work)
    return WholeRun(
        steps=config.steps,
        outlook=found,
        best_every=best.interval_steps,
        gain=1 - best.wall_s / found.wall_s,
        checkpoint_gb=gb,
        money=_money(on, found, config.checkpoint.keep * gb),
        kwh=_kwh(on, found, prediction),
    )


def _conditions(on: On, gb: float, step_s: float) -> Conditions:
    if on.of_catalog:
        return conditions(on.spec or PLAIN, gb, on.system, on.purchase, step_s)
    saves = on.profile.world(on.nodes, on.per_node)["checkpoint"] if on.profile else {}
    return Conditions(save_s=gb / saves["wait_gb_s"], write_s=gb / saves["write_gb_s"])


def _money(on: On, found: Outlook, stored_gb: float) -> Money | None:
    if not on.of_catalog or math.isinf(found.wall_s):
        return None
    if on.spec is None:
        return _machines_alone(on, found)
    spec, tariff = on.spec, cost.tariff(on.spec, on.group, on.sheet.name, on.purchase)
    if tariff is None:
        return None

    def usd(seconds: float) -> float:
        return tariff.usd(on.nodes, seconds) + cost.stored_usd(spec, stored_gb, seconds)

    wall, low, high = (usd(seconds) for seconds in (found.wall_s, found.low_s, found.high_s))
    return Money(usd=wall, low=low, high=high, priced_on=tariff.priced_on, of=f"the whole cluster, {on.purchase}")


def _machines_alone(on: On, found: Outlook) -> Money | None:
    price = instance_price(on.sheet.name, "us-east-1", spot=False)
    if price is None:
        return None
    hourly = on.nodes * price.usd
    wall, low, high = (hourly * seconds / HOUR for seconds in (found.wall_s, found.low_s, found.high_s))
    of = "the machines alone, on-demand in us-east-1"
    return Money(usd=wall, low=low, high=high, priced_on=price.on, of=of)


def _kwh(on: On, found: Outlook, prediction: Prediction) -> float | None:
    if not on.of_catalog or math.isinf(found.wall_s):
        return None
    used = replace(on.system, gpus_per_node=on.per_node)
    return energy.kwh(used, found.wall_s, busy(prediction) * found.goodput)
