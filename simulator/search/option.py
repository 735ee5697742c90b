"""One option for a run: machines and layout, with its time, cost and electricity."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from cluster.spec import ClusterSpec, Purchase
from infra.targets.mixins import OnThisMachine
from infra.targets.registry import target_of
from simulator.hardware.system import System
from simulator.layout import Layout
from simulator.parameters import checkpoint_gb
from simulator.search import filesystem
from simulator.search.fastest import TimedLayout
from simulator.search.question import Question
from simulator.search.trainer_config import PlannedRun, unsupported_reason
from simulator.step.prediction import Prediction
from simulator.whole_run import cost, energy, failures, goodput
from simulator.whole_run.goodput import Conditions, Outlook, Work

# Names as in `Prediction.parts`.
WAITING_PARTS = frozenset(
    ("tensor", "context", "experts", "gather", "pipeline bubble", "data", "host", "jitter", "step")
)


@dataclass(frozen=True)
class Option:
    """Machines and layout for a run, with its whole time, cost and electricity."""

    instance: str
    nodes: int
    purchase: Purchase
    layout: Layout
    prediction: Prediction
    outlook: Outlook
    steps: int
    usd: float
    usd_low: float
    usd_high: float
    kwh: float
    priced_on: date
    unsupported: str
    """Why the trainer cannot run it; empty if it can."""

    @property
    def gpus(self) -> int:
        return self.layout.gpus

    @property
    def memory_gib(self) -> float:
        return self.prediction.memory.total / 2**30


def build_option(question: Question, system: System, purchase: Purchase, timed: TimedLayout) -> Option | None:
    """Extend a timed layout to the whole run; return None if there is no price of these machines."""
    tariff = cost.tariff(question.spec, question.group, system.name, purchase)
    if tariff is None:
        return None
    prediction, layout, gb = timed.prediction, timed.layout, checkpoint_gb(question.named.model)
    steps = PlannedRun(question.named, question.tokens, 0).steps(layout)
    work = Work(steps=steps, step_s=prediction.step_s, low_s=prediction.low_s, high_s=prediction.high_s)
    wait = failures.replacement_s(purchase) if question.wait_s is None else question.wait_s
    run_conditions = conditions(question.spec, gb, system, purchase, prediction.step_s)
    outlook = goodput.predict_outlook(run_conditions, work, wait)
    checkpoints = question.named.preset.checkpoint.keep if question.named.preset else 3
    stored = checkpoints * gb

    def usd(seconds: float) -> float:
        # Machines are paid for from when they start.
        return tariff.usd(system.nodes, seconds - wait) + cost.stored_usd(question.spec, stored, seconds)

    return Option(
        instance=system.name,
        nodes=system.nodes,
        purchase=purchase,
        layout=layout,
        prediction=prediction,
        outlook=outlook,
        steps=steps,
        usd=usd(outlook.wall_s),
        usd_low=usd(outlook.low_s),
        usd_high=usd(outlook.high_s),
        kwh=energy.kwh(system, outlook.wall_s - wait, busy(prediction) * outlook.goodput),
        priced_on=tariff.priced_on,
        unsupported=unsupported_reason(question.named.model, layout),
    )


def conditions(spec: ClusterSpec, gb: float, system: System, purchase: Purchase, step_s: float) -> Conditions:
    """Return failure and checkpoint times of a run whose checkpoints have `gb` GB."""
    write_s = gb / filesystem.gb_s(spec)
    gb_per_rank = gb / system.gpus
    save_s = failures.blocked_s(gb_per_rank, gb_per_rank / system.host_gb_s, step_s)
    rate = failures.rate()
    failure_s = rate.mean_s(system.gpus)
    replacement_s = failures.replacement_s(purchase)
    # All ranks together read the checkpoint once, as fast as it is written.
    # Machines that are described without a stack have no target.
    is_single_host = bool(spec.target) and isinstance(target_of(spec), OnThisMachine)
    node_timeout_s = spec.slurm.node_timeout_s(single_host=is_single_host)
    restart_s = failures.restart_s(node_timeout_s) + replacement_s + write_s
    spot_s = failures.spot_mean_s(system.gpu.name, system.nodes) if purchase == "spot" else float("inf")
    warned = save_s + write_s <= failures.spot_notice_s()
    return Conditions(
        failure_s=failure_s if warned else 1 / (1 / failure_s + 1 / spot_s),
        failure_factors=(rate.low / rate.gpu_hours, rate.high / rate.gpu_hours),
        save_s=save_s,
        write_s=write_s,
        restart_s=restart_s,
        warned_s=spot_s if warned else float("inf"),
        warned_restart_s=restart_s,
    )


def busy(prediction: Prediction) -> float:
    """Return the share of a step in which GPU kernels run."""
    waiting = sum(seconds for part, seconds in prediction.parts.items() if part in WAITING_PARTS)
    return 1 - waiting / prediction.step_s
