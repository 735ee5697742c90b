"""What realises a row: the trainer's settings and the edited stack, as text, and both as files."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from infra.targets.registry import target_of
from simulator.machines import stacks
from simulator.search import filesystem, stack_edit, trainer_config
from simulator.search.option import Option
from simulator.search.plan import Plan, fabric
from simulator.search.question import Question
from simulator.search.stack_edit import Edit
from simulator.search.trainer_config import Job
from simulator.search.words import bottleneck, numbered, sentence


def settings(question: Question, one: Option) -> tuple[dict[str, Any], list[str]]:
    """The trainer's settings, and why it would refuse them, or nothing."""
    if one.unsupported:
        return {}, [one.unsupported]
    job = Job(question.named, question.tokens, one.outlook.interval_steps)
    tree = trainer_config.settings(job, one.layout)
    return tree, trainer_config.problems(tree, one.layout, one.gpus // one.nodes)


def edits(question: Question, one: Option, stack: Path) -> list[Edit]:
    wanted = {"instance": one.instance, "nodes": one.nodes, "purchase": one.purchase, "fabric": fabric(one.nodes)}
    found = [
        *stack_edit.list_edits(question.spec, question.group, wanted),
        *filesystem.edits(stacks.spec_of(stack), question.spec),
    ]
    return [*found, *stack_edit.raise_budget(question.spec, _most_per_hour(stack, found))]


def told(question: Question, one: Option, stack: Path) -> str:
    tree, problems = settings(question, one)
    settled = json.dumps({key: tree[key] for key in ("batch", "parallel", "checkpoint")}) if tree else ""
    trainer = f"no trainer config: {problems[0]}" if problems else f"trainer: {settled}"
    return f"{trainer}\nstack: {stack_edit.describe_edits(edits(question, one, stack))}"


def write(plan: Plan, stack: Path, folder: Path) -> list[Path]:
    """A folder for each row, with train.yaml where the trainer can, and the stack file; plan.json beside them."""
    written = []
    for number, one in numbered(plan):
        place = folder / f"{number:02}-{one.nodes}x{one.instance}-{one.purchase}"
        place.mkdir(parents=True, exist_ok=True)
        tree, problems = settings(plan.question, one)
        if not problems:
            (place / "train.yaml").write_text(trainer_config.text(tree, sentence(one)))
        changed = stack_edit.apply_edits(stack.read_text(encoding="utf-8"), edits(plan.question, one, stack))
        (place / stack.name).write_text(changed, encoding="utf-8")
        written.append(place)
    (folder / "plan.json").write_text(json.dumps(as_json(plan, stack), indent=2) + "\n")
    return written


def as_json(plan: Plan, stack: Path) -> dict[str, Any]:
    question = plan.question
    return {
        "model": question.named.name,
        "tokens": question.tokens,
        "stack": stack.name,
        "profile": str(question.profile.path) if question.profile else None,
        "layouts_considered": plan.counts.considered,
        "layouts_timed": plan.counts.timed,
        "chosen": next((n for n, one in numbered(plan) if one is plan.chosen), None),
        "front": [_row(plan, number, one, stack) for number, one in numbered(plan)],
    }


def _row(plan: Plan, number: int, one: Option, stack: Path) -> dict[str, Any]:
    tree, problems = settings(plan.question, one)
    return {
        "row": number,
        "instance": one.instance,
        "nodes": one.nodes,
        "gpus": one.gpus,
        "purchase": one.purchase,
        "layout": asdict(one.layout),
        "steps": one.steps,
        "step_s": [one.prediction.low_s, one.prediction.step_s, one.prediction.high_s],
        "parts_s": one.prediction.parts,
        "bottleneck": bottleneck(one.prediction),
        "memory_gib": one.memory_gib,
        "wall_s": [one.outlook.low_s, one.outlook.wall_s, one.outlook.high_s],
        "usd": [one.usd_low, one.usd, one.usd_high],
        "goodput": one.outlook.goodput,
        "interruptions": one.outlook.interruptions,
        "checkpoint_every": one.outlook.interval_steps,
        "checkpoint_rules_s": one.outlook.rules_s,
        "priced_on": str(one.priced_on),
        "kwh": one.kwh,
        "trainer": tree or None,
        "trainer_problems": problems,
        "stack_edit": stack_edit.describe_edits(edits(plan.question, one, stack)),
    }


def _most_per_hour(stack: Path, changes: list[Edit]) -> float:
    """Of the edited stack, every node up and each bought in the dearest way that it allows."""
    changed = stack_edit.apply_edits(stack.read_text(encoding="utf-8"), changes)
    spec = stack_edit.loaded(changed)
    return target_of(spec).cost(spec).usd_per_hour
