"""Mutated example stacks: validation of any stack file returns issues, within a time limit; every night has others."""

from __future__ import annotations

import copy
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.spec.issue import Issue, SpecError
from cluster.spec.stack_file import cluster_of
from infra.targets.registry import load_spec, plan_of, target_of
from infra.validate import validate
from infra.validate.partial import validate_readable
from tests.seeds import read_night

ROOT = Path(__file__).parents[2]
STACKS = sorted((ROOT / "stacks").glob("Pulumi.*.yaml"))
MUTATIONS_PER_STACK = 100
NIGHTLY_MUTATIONS = 20_000
PROCESSOR_LIMIT_S = 0.5
LONG_TEXT = "p5.48xlarge" * 10_000
WRONG_VALUES: tuple[Any, ...] = (
    *("", " ", "x", "\0", "é\n", "p5.48xlargee", "10.0.0.0/1", "10.0.0.0/8", "0.0.0.0/0", LONG_TEXT),
    *(None, True, False, 0, 1, -1, 1024, 10**9, 10**400, 0.5, float("inf"), float("nan")),
    *([], {}, [None], [""], [{}], {"": ""}, {"x": None}, ["x"] * 2000, {f"key-{n}": "x" for n in range(2000)}),
)
ValuePath = tuple[str | int, ...]


def paths(value: Any, prefix: ValuePath = ()) -> Iterator[ValuePath]:
    """Yield the path of every value in nested mappings and lists."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in entries:
        yield (*prefix, key)
        yield from paths(item, (*prefix, key))


def mutate(data: Any, source: random.Random) -> tuple[Any, str]:
    """Return a copy of a cluster with one to three wrong values, and a text that names them."""
    mutated, changes = copy.deepcopy(data), []
    for _ in range(source.randint(1, 3)):
        path = source.choice(list(paths(mutated)))
        wrong = copy.deepcopy(source.choice(WRONG_VALUES))
        place = mutated
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = wrong
        changes.append(f"{'.'.join(map(str, path))} = {wrong!r:.60}")
    return mutated, "; ".join(changes)


def judge(data: Any) -> list[Issue]:
    """Return the issues of a cluster, as `muster check` does; plan and price it if it has no errors."""
    try:
        spec = load_spec(data)
    except SpecError as bad:
        return [*bad.issues, *validate_readable(data, bad.issues)]
    issues = validate(spec)
    if not any(issue.level == "error" for issue in issues):
        plan_of(spec)
        target_of(spec).cost(spec)
    return issues


@pytest.mark.parametrize("machine", ["controller", "groups.gpu"])
@pytest.mark.parametrize("name", ["", " "])
def test_blank_instance_type_is_an_error(machine: str, name: str) -> None:
    data = cluster_of(ROOT / "stacks" / "Pulumi.aws-g6-pair.yaml")
    place = data["groups"]["gpu"] if machine == "groups.gpu" else data.setdefault(machine, {})
    place["instance_type"] = name
    assert [(issue.code, issue.where) for issue in judge(data)] == [
        ("unknown_instance_type", f"{machine}.instance_type")
    ]


@pytest.mark.parametrize("section", ["groups.gpu.instance_type", "slurm.default_group"])
def test_very_long_name_is_validated_within_the_time_limit(section: str) -> None:
    data = cluster_of(ROOT / "stacks" / "Pulumi.aws-g6-pair.yaml")
    *parents, last = section.split(".")
    place = data
    for key in parents:
        place = place.setdefault(key, {})
    place[last] = LONG_TEXT
    began = time.process_time()
    assert section in [issue.where for issue in judge(data)]
    assert time.process_time() - began < PROCESSOR_LIMIT_S


@pytest.mark.parametrize("stack", STACKS, ids=lambda path: path.name)
def test_mutated_stacks_give_issues_within_the_time_limit(stack: Path) -> None:
    check_mutations(stack, random.Random(stack.name), MUTATIONS_PER_STACK)


@pytest.mark.nightly
@pytest.mark.parametrize("stack", STACKS, ids=lambda path: path.name)
def test_twenty_thousand_mutated_stacks_give_issues_within_the_time_limit(stack: Path) -> None:
    check_mutations(stack, random.Random(f"{read_night()} {stack.name}"), math.ceil(NIGHTLY_MUTATIONS / len(STACKS)))


def check_mutations(stack: Path, source: random.Random, count: int) -> None:
    """Require that so many mutations of a stack are judged in time, and that no exception escapes."""
    data = cluster_of(stack)
    judge(data)
    for _ in range(count):
        mutated, changes = mutate(data, source)
        try:
            taken = time_judgement(mutated)
        except Exception as escaped:
            raise AssertionError(f"{escaped!r:.200} escaped for {changes}") from escaped
        if taken >= PROCESSOR_LIMIT_S:
            taken = time_judgement(mutated)  # a collection of garbage, or a shared core, is slow only once
        assert taken < PROCESSOR_LIMIT_S, f"{taken:.1f} s for {changes}"


def time_judgement(data: dict[str, Any]) -> float:
    """Return the seconds of processor time that the validation of a stack takes."""
    began = time.process_time()
    judge(data)
    return time.process_time() - began
