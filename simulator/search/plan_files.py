"""Render a row of a plan as the trainer's settings and an edited stack file, as text and as files."""

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
from simulator.search.summary_text import describe_bottleneck, describe_option, number_rows
from simulator.search.trainer_config import PlannedRun


def trainer_settings(question: Question, option: Option) -> tuple[dict[str, Any], list[str]]:
    """Return the trainer's settings, and why it would reject them."""
    if option.unsupported:
        return {}, [option.unsupported]
    run = PlannedRun(question.named, question.tokens, option.outlook.interval_steps)
    tree = trainer_config.build_settings(run, option.layout)
    return tree, trainer_config.list_problems(tree, option.layout, option.gpus // option.nodes)


def list_edits(question: Question, option: Option, stack: Path) -> list[Edit]:
    """Return the edits that make a stack file describe the option."""
    planned = {"instance": option.instance, "nodes": option.nodes, "purchase": option.purchase}
    planned["fabric"] = fabric(option.nodes)
    edits = [
        *stack_edit.list_edits(question.spec, question.group, planned),
        *filesystem.edits(stacks.spec_of(stack), question.spec),
    ]
    return [*edits, *stack_edit.raise_budget(question.spec, _max_usd_per_hour(stack, edits))]


def describe_changes(question: Question, option: Option, stack: Path) -> str:
    """Return the trainer's settings and the edits of the stack as two lines of text."""
    tree, problems = trainer_settings(question, option)
    main_settings = json.dumps({key: tree[key] for key in ("batch", "parallel", "checkpoint")}) if tree else ""
    trainer = f"no trainer config: {problems[0]}" if problems else f"trainer: {main_settings}"
    return f"{trainer}\nstack: {stack_edit.describe_edits(list_edits(question, option, stack))}"


def write(plan: Plan, stack: Path, folder: Path) -> list[Path]:
    """Write a folder for each row, with the stack file and, if the trainer can run it, train.yaml; and plan.json."""
    written = []
    for number, option in number_rows(plan):
        place = folder / f"{number:02}-{option.nodes}x{option.instance}-{option.purchase}"
        place.mkdir(parents=True, exist_ok=True)
        tree, problems = trainer_settings(plan.question, option)
        if not problems:
            (place / "train.yaml").write_text(trainer_config.render_yaml(tree, describe_option(option)))
        changed = stack_edit.apply_edits(stack.read_text(encoding="utf-8"), list_edits(plan.question, option, stack))
        (place / stack.name).write_text(changed, encoding="utf-8")
        written.append(place)
    (folder / "plan.json").write_text(json.dumps(as_json(plan, stack), indent=2) + "\n")
    return written


def as_json(plan: Plan, stack: Path) -> dict[str, Any]:
    """Return the plan as the content of plan.json."""
    question = plan.question
    return {
        "model": question.named.name,
        "tokens": question.tokens,
        "stack": stack.name,
        "profile": str(question.profile.path) if question.profile else None,
        "layouts_considered": plan.counts.considered,
        "layouts_timed": plan.counts.timed,
        "chosen": next((number for number, option in number_rows(plan) if option is plan.chosen), None),
        "front": [_row(plan, number, option, stack) for number, option in number_rows(plan)],
    }


def _row(plan: Plan, number: int, option: Option, stack: Path) -> dict[str, Any]:
    tree, problems = trainer_settings(plan.question, option)
    return {
        "row": number,
        "instance": option.instance,
        "nodes": option.nodes,
        "gpus": option.gpus,
        "purchase": option.purchase,
        "layout": asdict(option.layout),
        "steps": option.steps,
        "step_s": [option.prediction.low_s, option.prediction.step_s, option.prediction.high_s],
        "parts_s": option.prediction.parts,
        "bottleneck": describe_bottleneck(option.prediction),
        "memory_gib": option.memory_gib,
        "wall_s": [option.outlook.low_s, option.outlook.wall_s, option.outlook.high_s],
        "usd": [option.usd_low, option.usd, option.usd_high],
        "goodput": option.outlook.goodput,
        "interruptions": option.outlook.interruptions,
        "checkpoint_every": option.outlook.interval_steps,
        "checkpoint_rules_s": option.outlook.rules_s,
        "priced_on": str(option.priced_on),
        "kwh": option.kwh,
        "trainer": tree or None,
        "trainer_problems": problems,
        "stack_edit": stack_edit.describe_edits(list_edits(plan.question, option, stack)),
    }


def _max_usd_per_hour(stack: Path, edits: list[Edit]) -> float:
    """Return the price of the edited stack with every node running and bought in its most expensive way."""
    spec = stack_edit.load_text(stack_edit.apply_edits(stack.read_text(encoding="utf-8"), edits))
    return target_of(spec).cost(spec).usd_per_hour
