"""`muster rehearse`: create, use and remove a stack's cluster in a simulated cloud on this machine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

from rich.table import Table

from cluster.plural import format_count
from infra.engine.command_line import format_command
from infra.engine.stop import BAD_INPUT, FAILED, Stop
from infra.home import StackHome
from infra.resources.error import ResourceError
from infra.targets.error_coverage import ErrorCoverage, ErrorOptions
from infra.targets.mixins import RehearsalOptions, Rehearses
from infra.targets.registry import target_of, targets
from muster.commands import screen
from muster.commands.stack_spec import examine_spec, require_valid_spec
from muster.commands.stacks import require_stack_file

ALL = "all"


@dataclass(frozen=True)
class Choice:
    """Which rehearsals to run: one or more scenarios, each with one or more seeds."""

    seed: int = 1
    """First seed."""
    seeds: int = 1
    speed: float = 10.0
    nodes: int = 2
    """Most nodes of a group that run."""
    scenario: str = ""
    """Name of a scenario, several that share a cluster, separated by commas, or ALL; by default the first one."""
    errors: str = ""
    """Errors of the cloud that calls meet, instead of a scenario: ALL, `sample`, or codes separated by commas."""
    commands: str = ""
    """Commands whose calls meet errors, separated by commas; by default all."""
    minutes: float | None = None
    """How long errors are injected; by default until all calls have met all errors."""


def rehearse(name: str, choice: Choice) -> None:
    """Rehearse a stack and print where the timeline is; raise Stop if a rehearsal fails."""
    stack = require_stack_file(name, offline=True)
    if not choice.speed > 0:
        raise Stop(f"--speed: {choice.speed:g} is not allowed; allowed: any number above 0", "--speed 10", BAD_INPUT)
    if choice.nodes < 1:
        raise Stop(f"--nodes: {choice.nodes} is not allowed; allowed: 1 or more", "--nodes 2", BAD_INPUT)
    if choice.seeds < 1:
        raise Stop(f"--seeds: {choice.seeds} is not allowed; allowed: 1 or more", "--seeds 20", BAD_INPUT)
    if choice.minutes is not None and not (choice.errors and choice.minutes >= 0):
        allowed = "0 or more" if choice.errors else "only with --errors"
        raise Stop(
            f"--minutes: {choice.minutes:g} is not allowed; allowed: {allowed}", "--errors all --minutes 60", BAD_INPUT
        )
    if choice.commands and not choice.errors:
        what = f"--commands: '{choice.commands}' is not allowed; allowed: only with --errors"
        raise Stop(what, f"--errors all --commands {choice.commands}", BAD_INPUT)
    spec = require_valid_spec(stack, *examine_spec(stack, None, rehearsed=True))
    target = target_of(spec)
    if not isinstance(target, Rehearses):
        able = [other for _, other in sorted(targets().items()) if isinstance(other, Rehearses)]
        allowed = ", ".join(other.name for other in able)
        what = f"stack {name} has target {target.name}, which cannot be rehearsed; allowed: {allowed}"
        examples = ", ".join(example for other in able for example in other.examples)
        fix = f"run `{format_command('up', name)}`, or rehearse a stack of such a target, such as: {examples}"
        raise Stop(what, fix, BAD_INPUT)
    if choice.errors:
        _rehearse_errors(target, stack, choice)
        return
    runs = list_runs(choice, target.scenarios())
    if len(runs) == 1:
        _rehearse_once(target, stack, runs[0])
    else:
        _rehearse_all(target, stack, runs)


def list_runs(choice: Choice, scenarios: Mapping[str, str]) -> list[RehearsalOptions]:
    """Return the rehearsals of a choice in order; raise Stop if there is no such scenario."""
    names = choice.scenario.split(",")
    unknown = [name for name in names if name not in scenarios]
    if choice.scenario not in ("", ALL) and unknown:
        width = max(map(len, scenarios))
        described = "".join(f"\n  {name:{width}}  {text}" for name, text in scenarios.items())
        refused = choice.scenario if ALL in names else unknown[0]
        what = f"--scenario: '{refused}' is not allowed; allowed: {ALL}, or one or more of{described}"
        raise Stop(what, f"--scenario {next(iter(scenarios))}, which is the default", BAD_INPUT)
    chosen = list(scenarios) if choice.scenario == ALL else [choice.scenario or next(iter(scenarios))]
    return [
        RehearsalOptions(seed, choice.speed, choice.nodes, scenario)
        for scenario in chosen
        for seed in range(choice.seed, choice.seed + choice.seeds)
    ]


def _rehearse_errors(target: Rehearses, stack: StackHome, choice: Choice) -> None:
    """Print how many pairs of a call and an error are covered; raise Stop if an error was not handled."""
    default = Choice()
    for option, value, unused in (
        ("--scenario", f"'{choice.scenario}'", choice.scenario == default.scenario),
        ("--seeds", choice.seeds, choice.seeds == default.seeds),
        ("--speed", f"{choice.speed:g}", choice.speed == default.speed),
        ("--nodes", choice.nodes, choice.nodes == default.nodes),
    ):
        if not unused:
            what = f"{option}: {value} is not allowed with --errors; allowed: --seed, --commands, --minutes"
            raise Stop(what, f"leave out {option}", BAD_INPUT)
    began = time.monotonic()
    options = ErrorOptions(choice.errors, choice.seed, choice.commands or ALL, choice.minutes)
    coverage = target.rehearse_errors(stack, options, screen)
    for problem in coverage.problems:
        screen.print_failure(problem)
    screen.out().print(_render_coverage(coverage))
    total = coverage.total
    screen.say(f"calls: {coverage.calls}; record: {coverage.record}")
    summary = (
        f"pairs covered: {total.now:,} now, {total.ever:,} of {total.pairs:,} with earlier rehearsals "
        f"({format_count(coverage.codes, 'code')} at {format_count(total.calls, 'kind')} of call); "
        f"of the codes that are handled alike, one at a call: {total.classes_ever:,} of {total.classes:,}"
    )
    if coverage.problems:
        what = f"not handled as expected: {format_count(len(coverage.problems), 'error')}, see above; {summary}"
        raise Stop(what, "report it with these lines", FAILED)
    screen.print_success(f"rehearsed in {time.monotonic() - began:.0f} s: {summary}")
    if total.ever < total.pairs:
        screen.say(f"pairs not covered yet: {total.pairs - total.ever:,}; the next rehearsal continues with them")


def _render_coverage(coverage: ErrorCoverage) -> Table:
    columns = ("calls", "pairs", "covered now", "covered ever", "classes", "classes ever")
    table = screen.new_table("command", *columns, right=columns)
    for entry in (*coverage.commands, coverage.total):
        counts = astuple(entry)[1:]
        table.add_row(entry.command, *(f"{count:,}" for count in counts))
    return table


def _rehearse_once(target: Rehearses, stack: StackHome, run: RehearsalOptions) -> None:
    began = time.monotonic()
    screen.say(
        f"rehearsing scenario {run.scenario} of stack {stack.name}, seed {run.seed}, at {run.speed:g} times the speed; "
        "the simulated cloud starts"
    )
    folder = target.rehearse(stack, run, screen)
    screen.print_success(f"rehearsed in {time.monotonic() - began:.0f} s; timeline: {folder / 'timeline.svg'}")


def _rehearse_all(target: Rehearses, stack: StackHome, runs: Sequence[RehearsalOptions]) -> None:
    """Run all rehearsals, also after one has failed; raise Stop with the commands that repeat those that failed."""
    failed: list[str] = []
    for number, run in enumerate(runs, start=1):
        title = f"{number} of {len(runs)}: {run.scenario}, seed {run.seed}"
        screen.say(title)
        began = time.monotonic()
        try:
            target.rehearse(stack, run, screen)
        except (Stop, ResourceError) as error:
            screen.print_failure(f"{title}: {error}")
            failed.append(_format_replay(stack.name, run))
        else:
            screen.print_success(f"{title}: {time.monotonic() - began:.0f} s")
    screen.say(f"{len(runs) - len(failed)} of {format_count(len(runs), 'rehearsal')} passed")
    if failed:
        what = "\n  ".join([f"{len(failed)} of {format_count(len(runs), 'rehearsal')} failed; to repeat:", *failed])
        raise Stop(what, "see the logs of each under rehearsals/failed in muster's home", FAILED)


def _format_replay(stack: str, run: RehearsalOptions) -> str:
    options = f"--scenario {run.scenario} --seed {run.seed} --speed {run.speed:g} --nodes {run.nodes}"
    return f"muster rehearse --stack {stack} {options}"
