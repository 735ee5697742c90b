"""Setting the release in a stack file changes that value and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.spec.edit import remove_value, set_lines, set_release, set_value
from cluster.spec.stack_file import cluster_of

HEAD = "# mine\nconfig:\n  muster:cluster:\n    name: demo   # a name\n"
TABLE: dict[str, tuple[str, str]] = {
    "value": (
        HEAD + "    software:\n      slurm: '24.11' # why\n      training_lock: x\n",
        HEAD + '    software:\n      slurm: "26.05" # why\n      training_lock: x\n',
    ),
    "flow value": (
        HEAD + '    software: {training_lock: x, slurm: "24.11"}\n',
        HEAD + '    software: {training_lock: x, slurm: "26.05"}\n',
    ),
    "no value in a block": (
        HEAD + "    software:\n      training_lock: x\n    tags: {}\n",
        HEAD + '    software:\n      slurm: "26.05"\n      training_lock: x\n    tags: {}\n',
    ),
    "no value in a flow": (
        HEAD + "    software: { training_lock: x }\n",
        HEAD + '    software: { slurm: "26.05", training_lock: x }\n',
    ),
    "empty flow": (HEAD + "    software: {}\n", HEAD + '    software: {slurm: "26.05"}\n'),
    "no content": (HEAD + "    software:\n    tags: {}\n", HEAD + '    software: {slurm: "26.05"}\n    tags: {}\n'),
    "no section": (
        HEAD,
        '# mine\nconfig:\n  muster:cluster:\n    software: {slurm: "26.05"}\n    name: demo   # a name\n',
    ),
    "all in one flow": (
        "config: {muster:cluster: {name: demo}}\n".replace("muster:cluster", '"muster:cluster"'),
        'config: {"muster:cluster": {software: {slurm: "26.05"}, name: demo}}\n',
    ),
}


@pytest.mark.parametrize(("before", "after"), TABLE.values(), ids=TABLE)
def test_only_the_release_changes(before: str, after: str, tmp_path: Path) -> None:
    assert set_release(before, "26.05") == after
    (tmp_path / "Pulumi.x.yaml").write_text(after)
    assert cluster_of(tmp_path / "Pulumi.x.yaml")["software"]["slurm"] == "26.05"


@pytest.mark.parametrize("text", ["", "[]", "config: {}", "config: {other: 1}", "config:\n  muster:cluster:\n"])
def test_a_file_without_a_cluster_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="missing or not a mapping"):
        set_release(text, "26.05")


@pytest.mark.parametrize("file", sorted((Path(__file__).parents[2] / "stacks").glob("*.yaml")), ids=lambda f: f.name)
def test_every_example_can_be_changed(file: Path, tmp_path: Path) -> None:
    (tmp_path / file.name).write_text(set_release(file.read_text(), "26.05"))
    changed, original = cluster_of(tmp_path / file.name), cluster_of(file)
    assert changed["software"]["slurm"] == "26.05"
    assert {**changed, "software": None} == {**original, "software": None}


def test_a_field_of_another_section_is_set() -> None:
    text = HEAD + "    aws:\n      region: us-east-1 # ours\n"
    once = set_value(text, "aws.ami", "ami-1")
    assert once == HEAD + "    aws:\n      ami: ami-1\n      region: us-east-1 # ours\n"
    assert set_value(once, "aws.ami", "ami-2") == once.replace("ami-1", "ami-2")


GROUPS = (
    f"{HEAD}    groups:\n      a: # the first\n        count: 2 # pairs\n"
    "      b: {count: 1, size: {cpus: 2}}\n      c:\n"
)


@pytest.mark.parametrize(
    ("group", "line", "changed"),
    [
        ("a", "        count: 2 # pairs\n", "        image: ami-1\n        count: 2 # pairs\n"),
        ("b", "{count: 1,", "{image: ami-1, count: 1,"),
        ("c", "      c:\n", "      c: {image: ami-1}\n"),
        ("d", "      a: # the first", "      d: {image: ami-1}\n      a: # the first"),
    ],
)
def test_a_field_of_one_group_is_set_and_removed(group: str, line: str, changed: str) -> None:
    path = f"groups.{group}.image"
    once = set_value(GROUPS, path, "ami-1")
    assert once == GROUPS.replace(line, changed)
    assert set_value(once, path, "ami-2") == once.replace("ami-1", "ami-2")
    alone = {"c": GROUPS.replace("c:\n", "c: {}\n"), "d": GROUPS.replace("      a:", "      d: {}\n      a:")}
    assert remove_value(once, path) == alone.get(group, GROUPS)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a:\n  x: 1\n  image: i # mine\n# next\nb: 1\n", "a:\n  x: 1\n# next\nb: 1\n"),
        ("a:\n  image: i # mine\n  # why\n  x: 1\n", "a:\n  # why\n  x: 1\n"),
        ("a:\n  image: i\nb: 1\n", "a:\n  {}\nb: 1\n"),
        ("a: {x: 1, image: i}\n", "a: {x: 1}\n"),
        ("a: {x: 1}\n", "a: {x: 1}\n"),
        ("a: 1\n", "a: 1\n"),
        ("b: 1\n", "b: 1\n"),
    ],
)
def test_comments_of_other_fields_stay_when_one_is_removed(before: str, after: str) -> None:
    def nest(text: str) -> str:
        return HEAD + "".join(f"    {line}\n" for line in text.splitlines())

    assert remove_value(nest(before), "a.image") == nest(after)


@pytest.mark.parametrize("rest_of_b", ["*shared", "{<<: *shared, count: 3}"])
def test_a_value_with_aliases_is_not_changed(rest_of_b: str) -> None:
    text = HEAD + f"    groups:\n      a: &shared\n        count: 2\n      b: {rest_of_b}\n"
    with pytest.raises(ValueError, match="`a` has an anchor"):
        set_value(text, "groups.a.image", "ami-1")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("    groups:\n      a: &shared\n        count: 2\n        image: i\n      b: *shared\n", "`a` has an anchor"),
        ("    groups:\n      a: {image: &i x, count: 1}\n      b: {image: *i}\n", "`image` has an anchor"),
        ("    groups:\n      a:\n        image:\n          x: 1\n        count: 2\n", "`image` is not a single value"),
        ("    groups:\n      a:\n        image:\n          - x\n        count: 2\n", "`image` is not a single value"),
        ("    groups:\n      a: {image: [x], count: 2}\n", "`image` is not a single value"),
        ("    groups:\n      a:\n        image: |\n          x\n        count: 2\n", "`image` is not a single value"),
    ],
)
def test_only_a_single_value_without_aliases_is_removed(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        remove_value(HEAD + text, "groups.a.image")


def test_top_level_lines_are_replaced_or_added() -> None:
    text = "config:\n  muster:cluster: {name: a}\nencryptionsalt: v1:old\n"
    assert set_lines(text, ["encryptionsalt: v1:a\\1", "encryptedkey: k"]) == (
        "config:\n  muster:cluster: {name: a}\nencryptionsalt: v1:a\\1\nencryptedkey: k\n"
    )
    assert set_lines("config: {}", []) == "config: {}\n"
