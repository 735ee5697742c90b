"""Stack files that are missing, not YAML, or not a stack: each gives one clear issue with its location."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.spec import SpecError
from infra.targets.registry import read_spec as read

GOOD = "config:\n  muster:cluster:\n    name: x\n    target: local\n    groups: {a: {count: 1}}\n"
START = (
    "start with `config:` and, under it, `  muster:cluster:`; the smallest example is stacks/Pulumi.local-required.yaml"
)
SYNTAX = "correct the YAML there: indentation in spaces, `key: value`, quotes and brackets closed"

CASES = {
    "empty": ("", "Pulumi.x.yaml", "the file is empty", START),
    "only a comment": ("# later\n", "Pulumi.x.yaml", "the file is empty", START),
    "a list": ("- config\n", "Pulumi.x.yaml", "the file is not a mapping", START),
    "text": ("config\n", "Pulumi.x.yaml", "the file is not a mapping", START),
    "no config": ("runtime: python\n", "Pulumi.x.yaml", "`config` is missing or not a mapping", START),
    "config is text": ("config: x\n", "Pulumi.x.yaml", "`config` is missing or not a mapping", START),
    "no cluster": ("config: {}\n", "Pulumi.x.yaml", "`config` has no `muster:cluster`; it has: nothing", START),
    "cluster misspelt": (
        "config:\n  muster:clutser: {}\n",
        "Pulumi.x.yaml",
        "`config` has no `muster:cluster`; it has: muster:clutser",
        "rename `muster:clutser` to `muster:cluster`",
    ),
    "bracket left open": (
        "config: {a: 1\n",
        "Pulumi.x.yaml, line 2, column 1",
        "not YAML: expected ',' or '}', but got '<stream end>'",
        SYNTAX,
    ),
    "tab": (
        "config:\n\tmuster:cluster: {}\n",
        "Pulumi.x.yaml, line 2, column 1",
        "not YAML: found character '\\t' that cannot start any token",
        SYNTAX,
    ),
    "two documents": (
        "a: 1\n---\nb: 2\n",
        "Pulumi.x.yaml, line 2, column 1",
        "not YAML: but found another document",
        SYNTAX,
    ),
    "object": (
        "config: !!python/object:os.system {}\n",
        "Pulumi.x.yaml, line 1, column 9",
        "not YAML: could not determine a constructor for the tag 'tag:yaml.org,2002:python/object:os.system'",
        SYNTAX,
    ),
    "duplicate key": (
        GOOD + "    name: y\n",
        "Pulumi.x.yaml, line 6, column 5",
        "duplicate key `name`, first set in line 3",
        "remove one of the two",
    ),
    "list as a key": (
        "config: {[1]: 2}\n",
        "Pulumi.x.yaml, line 1, column 10",
        "not YAML: found unhashable key",
        SYNTAX,
    ),
    "too deep": ("[" * 5000, "Pulumi.x.yaml", "nested too deeply", "reduce the nesting; stacks/ has examples"),
    "control character": (
        "config: \x01\n",
        "Pulumi.x.yaml",
        "not YAML: unacceptable character #x0001: special characters are not allowed",
        "remove characters that are not plain text",
    ),
}


@pytest.mark.parametrize(("text", "where", "message", "fix"), CASES.values(), ids=CASES)
def test_bad_file(tmp_path: Path, text: str, where: str, message: str, fix: str) -> None:
    stack = tmp_path / "Pulumi.x.yaml"
    stack.write_text(text)
    with pytest.raises(SpecError) as caught:
        read(stack)
    assert [(i.where, i.message, i.fix) for i in caught.value.issues] == [(where, message, fix)]


def test_missing_file_names_those_that_exist(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.local.yaml").write_text(GOOD)
    with pytest.raises(SpecError) as caught:
        read(tmp_path / "Pulumi.lcoal.yaml")
    message = f"there is no such file in {tmp_path}; stack files there: Pulumi.local.yaml"
    assert [(i.where, i.message) for i in caught.value.issues] == [("Pulumi.lcoal.yaml", message)]


def test_directory_instead_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        read(tmp_path)
    assert [i.message for i in caught.value.issues] == ["cannot be read: Is a directory"]


def test_not_utf8(tmp_path: Path) -> None:
    stack = tmp_path / "Pulumi.x.yaml"
    stack.write_bytes(b"config: \xff\n")
    with pytest.raises(SpecError) as caught:
        read(stack)
    assert [i.message for i in caught.value.issues] == ["byte 8 is not UTF-8 text"]


@pytest.mark.fault(17)
def test_every_duplicate_is_named(tmp_path: Path) -> None:
    stack = tmp_path / "Pulumi.x.yaml"
    stack.write_text("config:\n  a: {b: 1, b: 2}\n  c: 3\n  c: 4\n")
    with pytest.raises(SpecError) as caught:
        read(stack)
    assert [i.where for i in caught.value.issues] == [
        "Pulumi.x.yaml, line 4, column 3",
        "Pulumi.x.yaml, line 2, column 13",
    ]


def test_times_and_booleans_are_read_as_pulumi_reads_them(tmp_path: Path) -> None:
    stack = tmp_path / "Pulumi.x.yaml"
    stack.write_text(GOOD + "    slurm: {default_time: 1:00:00}\n    tags: {a: no, b: on, c: 010}\n")
    spec = read(stack)
    assert spec.slurm.default_time == "1:00:00"
    assert spec.tags == {"a": "no", "b": "on", "c": "010"}


def test_anchors_and_merges(tmp_path: Path) -> None:
    stack = tmp_path / "Pulumi.x.yaml"
    stack.write_text(
        "config:\n  muster:cluster:\n    name: x\n    target: local\n"
        "    groups: {a: &a {count: 1}, b: *a, c: {<<: *a, fabric: tcp}}\n"
    )
    assert {name: group.count for name, group in read(stack).groups.items()} == {"a": 1, "b": 1, "c": 1}
