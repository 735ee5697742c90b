"""Plan a run: the best layout on every type and number of machines, and the Pareto front of the options."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from simulator.hardware.rates import load_fitted_rates
from simulator.job import DEFAULT_LAYOUT, base_layout
from simulator.machines.instances import system
from simulator.machines.profile_catalog import apply_profile
from simulator.machines.profile_fit import RatedSystem
from simulator.search.fastest import FastestLayouts, find_fastest
from simulator.search.option import Option, build_option
from simulator.search.question import Question
from simulator.search.space import Counts, Space
from trainer.config.errors import ConfigError, ConfigProblem


@dataclass(frozen=True)
class Plan:
    """The answer to a question: all options, and the Pareto front to choose from."""

    question: Question
    options: tuple[Option, ...]
    """All options that would finish, fit in memory and have a price."""
    front: tuple[Option, ...]
    """Options that the trainer can run, fastest first; then unsupported ones, if requested or if all are."""
    chosen: Option | None
    gain: float
    """Share of time that the fastest unsupported layout would save; 0 if there is none."""
    counts: Counts


def plan(question: Question, progress: Callable[[str], None] = lambda _: None) -> Plan:
    """Search all machines of a question; raise ConfigError if nothing divides, fits in memory or has a price."""
    counts = Counts()
    spaces = [_space(question, name, nodes, counts) for name in question.instances for nodes in question.nodes]
    options: list[Option] = []
    fits = False
    for space in spaces:
        progress(f"{space.system.nodes} x {space.system.name}")
        fastest = find_fastest(space)
        fits = fits or fastest.any is not None
        options += _options(question, space, fastest)
    if not options:
        raise ConfigError([_explain_nothing(question, spaces, fits)])
    runnable = pareto_front(option for option in options if not option.unsupported)
    better = [option for option in pareto_front(options) if option.unsupported]
    shown = (*runnable, *(better if question.beyond_trainer or not runnable else ()))
    chosen = choose(runnable or better, question.deadline_s, question.budget_usd)
    return Plan(question, tuple(options), shown, chosen, _gain(runnable, better), counts)


def pareto_front(options: Iterable[Option]) -> list[Option]:
    """Return the options that no other beats in both time and cost, from the fastest to the cheapest."""
    front: list[Option] = []
    for option in sorted(options, key=lambda option: (option.outlook.wall_s, option.usd)):
        if not front or option.usd < front[-1].usd:
            front.append(option)
    return front


def choose(options: Sequence[Option], deadline_s: float | None, budget_usd: float | None) -> Option | None:
    """Return the cheapest option within the deadline, or the fastest within the budget; None if there is none."""
    allowed = [
        option
        for option in options
        if (deadline_s is None or option.outlook.wall_s <= deadline_s)
        and (budget_usd is None or option.usd <= budget_usd)
    ]
    if deadline_s is not None:
        return min(allowed, key=lambda option: option.usd, default=None)
    if budget_usd is not None:
        return min(allowed, key=lambda option: option.outlook.wall_s, default=None)
    # Without a limit: the point where 10 % more money no longer buys 10 % less time.
    return min(allowed, key=lambda option: option.usd * option.outlook.wall_s, default=None)


def fabric(nodes: int) -> str:
    """Return the fabric that a cluster of this size needs; a single node has no other node to talk to."""
    return "efa" if nodes > 1 else "tcp"


def rate_machines(question: Question, instance: str, nodes: int) -> RatedSystem:
    """Return machines and rates, by the catalog or as measured; raise ConfigError if the profile is of another GPU."""
    machines = system(instance, nodes, fabric(nodes), question.region)
    return apply_profile(question.profile, machines) if question.profile else RatedSystem(machines, load_fitted_rates())


def _gain(runnable: list[Option], better: list[Option]) -> float:
    if not runnable or not better:
        return 0.0
    return max(0.0, 1 - better[0].outlook.wall_s / runnable[0].outlook.wall_s)


def _space(question: Question, instance: str, nodes: int, counts: Counts) -> Space:
    rated = rate_machines(question, instance, nodes)
    preset = question.named.preset
    base = base_layout(preset) if preset else DEFAULT_LAYOUT
    return Space(question.named.model, rated.system, question.batch, counts, rates=rated.rates, base=base)


def _options(question: Question, space: Space, fastest: FastestLayouts) -> list[Option]:
    layouts = [timed for timed in (fastest.any, fastest.runnable) if timed]
    if fastest.any is fastest.runnable:
        layouts = layouts[:1]
    options = [
        build_option(question, space.system, purchase, timed) for purchase in question.purchases for timed in layouts
    ]
    return [option for option in options if option and math.isfinite(option.outlook.wall_s)]


def _explain_nothing(question: Question, spaces: list[Space], fits: bool) -> ConfigProblem:
    """Return why there is no option at all."""
    machines, counts = ", ".join(question.instances), _format_range(question.nodes)
    if fits:
        purchases = ", ".join(question.purchases)
        message = f"there is no price of {machines} as {purchases}, or the run would never finish on it"
        return ConfigProblem(
            "instance", message, "choose another type or --purchase; `make cost` shows the available prices"
        )
    if not any(list(space.micros(shape)) for space in spaces for shape in space.shapes()):
        sizes = f"{question.batch.least} to {question.batch.most} samples"
        message = f"{sizes} cannot be divided over any layout of {counts} nodes of {machines}"
        return ConfigProblem("batch", message, "give a wider range, such as --batch 256..1024, or other --nodes")
    message = f"no layout of {question.named.name} fits into the memory of {counts} nodes of {machines}"
    return ConfigProblem("nodes", message, "use more nodes, GPUs with more memory, or a smaller model")


def _format_range(nodes: tuple[int, ...]) -> str:
    return str(nodes[0]) if len(nodes) == 1 else f"{nodes[0]} to {nodes[-1]}"
