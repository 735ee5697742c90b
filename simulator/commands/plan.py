"""`python -m simulator plan`: which machines, how many, which layout; how long, how much."""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import get_args

from cluster.spec import Purchase
from simulator import terminal
from simulator.commands import outputs
from simulator.commands.progress import progress
from simulator.machines import profile, stacks
from simulator.models import find_model
from simulator.search import filesystem, picture, question, realised, words
from simulator.search.option import Option
from simulator.search.plan import Plan, on, plan
from simulator.search.question import Question
from simulator.step import timeline_output
from simulator.step.timeline import build_timeline
from trainer.config.errors import ConfigError, ConfigProblem

BAD_INPUT = 2


def main(arguments: list[str]) -> int:
    asked = _parser().parse_args(arguments)
    try:
        _check_outputs(asked)
        stack = stacks.find(asked.stack)
        began = time.perf_counter()
        answer = plan(_question(asked, stack), progress)
        progress("")
        _give(answer, asked, stack, time.perf_counter() - began)
        if answer.chosen is None:
            raise ConfigError([_nearest(answer)])
    except ConfigError as bad:
        progress("")
        for problem in bad.problems:
            print(terminal.format_problem(problem, terminal.terminal_width()), file=sys.stderr)
        return BAD_INPUT
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulator plan", description=__doc__)
    parser.add_argument("--model", required=True, help="preset of the trainer, or a published model")
    parser.add_argument("--tokens", required=True, help="to train on, such as 1e12")
    parser.add_argument("--stack", required=True, help="name in stacks/, or a stack file")
    parser.add_argument("--group", help="node group of the stack; needed where it has several")
    parser.add_argument("--instance", nargs="+", help="types to consider; by default the group's own")
    parser.add_argument("--purchase", nargs="+", choices=get_args(Purchase), help="by default the group's own")
    parser.add_argument("--nodes", default="1..128", help="16, 4,8,12 or 1..128 (default)")
    parser.add_argument("--batch", help="samples of a step, 512 or 256..1024; by default the preset's")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--deadline", help="such as 7d or 12h: the cheapest within it is chosen")
    limit.add_argument("--budget", help="in US dollars: the fastest within it is chosen")
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="the GPU of the machines, as calibrate measured it"
    )
    parser.add_argument("--shared-gb", type=int, help="of the shared Lustre filesystem; by default the stack's own")
    parser.add_argument("--wait", help="for the first machines, such as 3d; by default minutes")
    parser.add_argument("--any", action="store_true", help="show layouts that the trainer does not have, too")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="trainer config and stack file of each row")
    parser.add_argument("--picture", type=Path, metavar="FILE.png|svg|pdf", help="time against money")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE.json|png", help="one step of the chosen row, event by event"
    )
    parser.add_argument("--json", action="store_true", help="instead of the table")
    return parser


def _check_outputs(asked: argparse.Namespace) -> None:
    """Nobody waits for a search whose answer has no place to go to."""
    if asked.trace:
        timeline_output.check_output("--trace", asked.trace)
        outputs.check_file("--trace", asked.trace, timeline_output.KINDS)
    if asked.picture:
        outputs.check_file("--picture", asked.picture, picture.KINDS)
    if asked.write:
        outputs.check_folder("--write", asked.write)


def _question(asked: argparse.Namespace, stack: Path) -> Question:
    spec = stacks.spec_of(stack)
    if asked.shared_gb is not None:
        spec = filesystem.resized(spec, asked.shared_gb)
    group = stacks.group_of(spec, asked.group)
    model = find_model(asked.model)
    own = spec.groups[group]
    return Question(
        named=model,
        tokens=question.tokens(asked.tokens),
        spec=spec,
        group=group,
        instances=tuple(dict.fromkeys(asked.instance or [own.instance_type or ""])),
        nodes=question.nodes(asked.nodes),
        purchases=tuple(dict.fromkeys(asked.purchase or [own.capacity.kind])),
        batch=question.batch(asked.batch, model),
        deadline_s=question.duration(asked.deadline, "deadline") if asked.deadline else None,
        budget_usd=question.money(asked.budget) if asked.budget else None,
        wait_s=question.duration(asked.wait, "wait") if asked.wait else None,
        beyond_trainer=asked.any,
        profile=profile.read(asked.profile) if asked.profile else None,
    )


def _give(answer: Plan, asked: argparse.Namespace, stack: Path, seconds: float) -> None:
    try:
        # Whoever closes a pipe has read enough.
        with suppress(BrokenPipeError):
            _tell(answer, asked, stack, seconds)
        _write(answer, asked, stack)
    except OSError as bad:
        raise outputs.failed(bad) from None


def _tell(answer: Plan, asked: argparse.Namespace, stack: Path, seconds: float) -> None:
    if asked.json:
        print(json.dumps(realised.as_json(answer, stack), indent=2))
    else:
        columns = terminal.terminal_width()
        print(words.told(answer, columns))
        if answer.chosen:
            print(terminal.wrap_text(realised.told(answer.question, answer.chosen, stack), columns))
        counts = answer.counts
        print(f"{counts.considered:,} layouts considered, {counts.timed:,} of them timed, in {seconds:.1f} s")
    sys.stdout.flush()


def _write(answer: Plan, asked: argparse.Namespace, stack: Path) -> None:
    if asked.picture:
        picture.draw(answer, asked.picture)
    if asked.trace and answer.chosen:
        print(_traced(answer.question, answer.chosen, asked.trace), file=sys.stderr)
    if asked.write:
        for place in realised.write(answer, stack, asked.write):
            print(f"wrote {place}", file=sys.stderr)


def _traced(asked: Question, chosen: Option, out: Path) -> str:
    machines = on(asked, chosen.instance, chosen.nodes)
    title = f"{asked.named.name} on {chosen.nodes} x {chosen.instance}: {words.layout_words(chosen.layout)}"
    return timeline_output.write_timeline(
        out, title, build_timeline(asked.named.model, chosen.layout, machines.system, machines.rates)
    )


def _nearest(answer: Plan) -> ConfigProblem:
    """What would be met instead, where nothing meets what is asked."""
    asked = answer.question
    if asked.deadline_s is not None:
        fastest = min(answer.front, key=lambda one: one.outlook.wall_s)
        message = f"{words.duration(asked.deadline_s)} is met by nothing within --nodes; the fastest takes"
        message += (
            f" {words.duration(fastest.outlook.wall_s)} on {_machines(fastest)}, for {words.money(fastest.usd)} USD"
        )
        return ConfigProblem("deadline", message, "give that much time, more --nodes or another --instance")
    cheapest = min(answer.front, key=lambda one: one.usd)
    message = f"{words.money(asked.budget_usd or 0)} USD is enough for nothing; the cheapest costs"
    message += f" {words.money(cheapest.usd)} USD, {words.duration(cheapest.outlook.wall_s)} on {_machines(cheapest)}"
    return ConfigProblem("budget", message, "give that much, fewer tokens, or another --instance or --purchase")


def _machines(one: Option) -> str:
    return f"{one.nodes} x {one.instance} {one.purchase}"
