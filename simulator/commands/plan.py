"""The `plan` command: choose the machines, the number of nodes and the layout of a run by time and cost."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn, get_args

from cluster.spec import Purchase
from simulator import terminal
from simulator.commands import outputs
from simulator.commands.console import print_problems, show_progress
from simulator.machines import profile, stacks
from simulator.models import find_model
from simulator.search import filesystem, picture, plan_files, question
from simulator.search.option import Option
from simulator.search.plan import Plan, plan, rate_machines
from simulator.search.question import Question
from simulator.search.summary_text import format_duration, format_layout, format_plan, format_usd
from simulator.step import timeline_output
from simulator.step.timeline import build_timeline
from trainer.config.errors import ConfigError, ConfigProblem


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        _check_outputs(options)
        began = time.perf_counter()
        with show_progress("reading the stack and its prices") as progress:
            stack, query = _question(options)
            answer = plan(query, progress)
        _output(answer, options, stack, time.perf_counter() - began)
        if answer.chosen is None:
            raise ConfigError([_describe_nearest(answer)])
    except ConfigError as error:
        return print_problems(error)
    return 0


class _Parser(argparse.ArgumentParser):
    """A parser that adds an example to the error for missing options."""

    def error(self, message: str) -> NoReturn:
        if "required" in message:
            message += f"; for example: --model llama-8b --tokens 1e12 --stack {stacks.priced_examples()[-1]}"
        super().error(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=terminal.program_name("plan"),
        description="Choose the machines, the number of nodes and the layout of a training run by time and cost.",
    )
    parser.add_argument("--model", required=True, help="preset of the trainer, or a published model")
    parser.add_argument("--tokens", required=True, help="number of tokens to train on, such as 1e12")
    parser.add_argument("--stack", "-s", required=True, help="name in stacks/, or a stack file")
    parser.add_argument("--group", help="node group of the stack; required if it has several")
    parser.add_argument("--instance", nargs="+", help="instance types to consider (default: the group's)")
    parser.add_argument(
        "--purchase", nargs="+", choices=get_args(Purchase), help="purchase options to consider (default: the group's)"
    )
    parser.add_argument(
        "--nodes", default="1..128", help="node counts to consider: 16, or 4,8,12, or 1..128 (default: %(default)s)"
    )
    parser.add_argument("--batch", help="samples per step: 512, or 256..1024 (default: the preset's)")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument(
        "--deadline", help="choose the cheapest option that finishes within this time, such as 7d or 12h"
    )
    limit.add_argument("--budget", help="choose the fastest option that costs at most this many US dollars")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="use GPU rates that `calibrate` measured")
    parser.add_argument("--shared-gb", type=int, help="size of the shared Lustre filesystem (default: the stack's)")
    parser.add_argument("--wait", help="expected wait until machines are available, such as 3d (default: minutes)")
    parser.add_argument("--any", action="store_true", help="also show layouts that the trainer does not support")
    parser.add_argument(
        "--write", type=Path, metavar="FOLDER", help="write a trainer config and a stack file for each row"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE.png|svg|pdf", help="write a chart of time against cost")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE.json|png", help="write the events of one step of the chosen row"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return parser


def _check_outputs(options: argparse.Namespace) -> None:
    """Raise ConfigError if a file cannot be written, before the search."""
    if options.trace:
        timeline_output.check_output("--trace", options.trace)
        outputs.check_file("--trace", options.trace, timeline_output.SUFFIXES)
    if options.picture:
        outputs.check_file("--picture", options.picture, picture.KINDS)
    if options.write:
        outputs.check_folder("--write", options.write)


def _question(options: argparse.Namespace) -> tuple[Path, Question]:
    """Return the stack file and the question; raise ConfigError with the problems of all options."""
    problems: list[ConfigProblem] = []
    with _collect(problems):
        model = find_model(options.model)
    with _collect(problems):
        batch = question.parse_batch(options.batch) if options.batch is not None else None
    with _collect(problems):
        tokens = question.parse_tokens(options.tokens)
    with _collect(problems):
        nodes = question.parse_nodes(options.nodes)
    with _collect(problems):
        deadline_s = question.parse_duration(options.deadline, "deadline") if options.deadline else None
    with _collect(problems):
        budget_usd = question.parse_budget(options.budget) if options.budget else None
    with _collect(problems):
        wait_s = question.parse_duration(options.wait, "wait") if options.wait else None
    with _collect(problems):
        measured = profile.read(options.profile) if options.profile else None
    with _collect(problems):
        stack = stacks.find(options.stack)
        spec = stacks.spec_of(stack)
        if options.shared_gb is not None:
            spec = filesystem.resized(spec, options.shared_gb)
        group = stacks.group_of(spec, options.group)
    if problems:
        raise ConfigError(problems)
    own = spec.groups[group]
    return stack, Question(
        named=model,
        tokens=tokens,
        spec=spec,
        group=group,
        instances=tuple(dict.fromkeys(options.instance or [own.instance_type or ""])),
        nodes=nodes,
        purchases=tuple(dict.fromkeys(options.purchase or [own.capacity.kind])),
        batch=batch or question.choose_batch(model),
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        wait_s=wait_s,
        beyond_trainer=options.any,
        profile=measured,
    )


@contextmanager
def _collect(problems: list[ConfigProblem]) -> Iterator[None]:
    """Add the problems that the block raises to `problems` instead of raising them."""
    try:
        yield
    except ConfigError as error:
        problems += error.problems


def _output(answer: Plan, options: argparse.Namespace, stack: Path, seconds: float) -> None:
    try:
        # The reader of a pipe may close it early, which is not an error.
        with suppress(BrokenPipeError):
            _print(answer, options, stack, seconds)
        _write(answer, options, stack)
    except OSError as error:
        raise outputs.describe_failure(error) from None


def _print(answer: Plan, options: argparse.Namespace, stack: Path, seconds: float) -> None:
    if options.json:
        print(json.dumps(plan_files.as_json(answer, stack), indent=2))
    else:
        columns = terminal.terminal_width()
        print(format_plan(answer, columns))
        if answer.chosen:
            print(terminal.wrap_text(plan_files.describe_changes(answer.question, answer.chosen, stack), columns))
        counts = answer.counts
        print(f"{counts.considered:,} layouts considered, {counts.timed:,} of them timed, in {seconds:.1f} s")
    sys.stdout.flush()


def _write(answer: Plan, options: argparse.Namespace, stack: Path) -> None:
    if options.picture:
        picture.draw(answer, options.picture)
    if options.trace and answer.chosen:
        print(_trace(answer.question, answer.chosen, options.trace), file=sys.stderr)
    if options.write:
        for place in plan_files.write(answer, stack, options.write):
            print(f"wrote {place}", file=sys.stderr)


def _trace(question: Question, chosen: Option, out: Path) -> str:
    machines = rate_machines(question, chosen.instance, chosen.nodes)
    title = f"{question.named.name} on {chosen.nodes} x {chosen.instance}: {format_layout(chosen.layout)}"
    return timeline_output.write_timeline(
        out, title, build_timeline(question.named.model, chosen.layout, machines.system, machines.rates)
    )


def _describe_nearest(answer: Plan) -> ConfigProblem:
    """Return the problem of a limit that no option meets, with the nearest option."""
    question = answer.question
    if question.deadline_s is not None:
        fastest = min(answer.front, key=lambda option: option.outlook.wall_s)
        message = f"{format_duration(question.deadline_s)} cannot be met within --nodes; the fastest option takes"
        message += (
            f" {format_duration(fastest.outlook.wall_s)} on {_machines(fastest)}, for {format_usd(fastest.usd)} USD"
        )
        return ConfigProblem("deadline", message, "raise the deadline, or allow more --nodes or another --instance")
    cheapest = min(answer.front, key=lambda option: option.usd)
    message = f"{format_usd(question.budget_usd or 0)} USD is not enough for any option; the cheapest costs"
    message += f" {format_usd(cheapest.usd)} USD, {format_duration(cheapest.outlook.wall_s)} on {_machines(cheapest)}"
    return ConfigProblem(
        "budget", message, "raise the budget, train on fewer tokens, or allow another --instance or --purchase"
    )


def _machines(option: Option) -> str:
    return f"{option.nodes} x {option.instance} {option.purchase}"
