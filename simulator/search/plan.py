"""The answer to a question: every machine and number of nodes, the best layout on each, and the front of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from simulator.hardware.rates import load_fitted_rates
from simulator.machines.instances import system
from simulator.machines.profile_catalog import joined
from simulator.machines.profile_fit import RatedSystem
from simulator.search.best import Best, best
from simulator.search.front import chosen, front
from simulator.search.option import Option, option
from simulator.search.question import Question
from simulator.search.space import Counts, Space
from trainer.config.errors import ConfigError, ConfigProblem


@dataclass(frozen=True)
class Plan:
    question: Question
    options: tuple[Option, ...]
    """Everything that would end, fit and has a price."""
    front: tuple[Option, ...]
    """What the trainer can run, fastest first; what it cannot, where that is asked for or all there is."""
    chosen: Option | None
    gain: float
    """How much faster the fastest layout would be that the trainer does not have; 0 where it is none."""
    counts: Counts


def plan(question: Question, progress: Callable[[str], None] = lambda _: None) -> Plan:
    """Raises ConfigError where no layout divides, nothing fits, or nothing has a price."""
    counts = Counts()
    spaces = [_space(question, name, nodes, counts) for name in question.instances for nodes in question.nodes]
    options: list[Option] = []
    fitting = False
    for space in spaces:
        progress(f"{space.system.nodes} x {space.system.name}")
        found = best(space)
        fitting = fitting or found.any is not None
        options += _options(question, space, found)
    if not options:
        raise ConfigError([_nothing(question, spaces, fitting)])
    runnable = front(one for one in options if not one.unsupported)
    better = [one for one in front(options) if one.unsupported]
    shown = (*runnable, *(better if question.beyond_trainer or not runnable else ()))
    picked = chosen(runnable or better, question.deadline_s, question.budget_usd)
    return Plan(question, tuple(options), shown, picked, _gain(runnable, better), counts)


def _gain(runnable: list[Option], better: list[Option]) -> float:
    if not runnable or not better:
        return 0.0
    return max(0.0, 1 - better[0].outlook.wall_s / runnable[0].outlook.wall_s)


def fabric(nodes: int) -> str:
    """A single node talks to nobody."""
    return "efa" if nodes > 1 else "tcp"


def on(question: Question, instance: str, nodes: int) -> RatedSystem:
    """Machines and rates, by the catalog or as measured; ConfigError where the profile is of another GPU."""
    machines = system(instance, nodes, fabric(nodes), question.region)
    return joined(question.profile, machines) if question.profile else RatedSystem(machines, load_fitted_rates())


def _space(question: Question, instance: str, nodes: int, counts: Counts) -> Space:
    found = on(question, instance, nodes)
    dtype = question.named.preset.precision if question.named.preset else "bf16"
    return Space(question.named.model, found.system, question.batch, dtype, counts, rates=found.rates)


def _options(question: Question, space: Space, found: Best) -> list[Option]:
    layouts = [one for one in (found.any, found.runnable) if one]
    if found.any is found.runnable:
        layouts = layouts[:1]
    every = [option(question, space.system, way, one) for way in question.purchases for one in layouts]
    return [one for one in every if one and math.isfinite(one.outlook.wall_s)]


def _nothing(question: Question, spaces: list[Space], fitting: bool) -> ConfigProblem:
    machines, counts = ", ".join(question.instances), _told(question.nodes)
    if fitting:
        ways = ", ".join(question.purchases)
        message = f"nobody has a price of {machines} as {ways}, or the run would never end on it"
        return ConfigProblem(
            "instance", message, "choose another type or --purchase; `make cost` shows the prices there are"
        )
    if not any(list(space.micros(shape)) for space in spaces for shape in space.shapes()):
        sizes = f"{question.batch.least} to {question.batch.most} samples"
        message = f"{sizes} cannot be shared by any layout of {counts} nodes of {machines}"
        return ConfigProblem("batch", message, "give a wider range, such as --batch 256..1024, or other --nodes")
    message = f"no layout of {question.named.name} fits into the memory of {counts} nodes of {machines}"
    return ConfigProblem("nodes", message, "take more nodes, GPUs with more memory, or a smaller model")


def _told(nodes: tuple[int, ...]) -> str:
    return str(nodes[0]) if len(nodes) == 1 else f"{nodes[0]} to {nodes[-1]}"
