"""Generated documents are complete and match the spec; stale ones are detected."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import dropwhile
from pathlib import Path

import pytest
import yaml

from cluster.spec.fields import walk
from infra.targets.aws import documents
from infra.targets.registry import spec_model, targets
from muster.documents import (
    FIELDS,
    GOLDEN,
    SCHEMA,
    STACK_SCHEMA,
    find_stale,
    render_field_table,
    write_documents,
)

ROOT = Path(__file__).parents[2]
LAYOUTS = GOLDEN / documents.LAYOUTS
AWS = Path(documents.PAGE)


def copy_documents(tmp_path: Path) -> Path:
    for name in ("docs", "stacks", GOLDEN):
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


def test_committed_documents_are_current() -> None:
    assert find_stale(ROOT) == [], "run `make golden` and review the difference"


def test_stale_documents_are_named_and_rewritten(tmp_path: Path) -> None:
    root = copy_documents(tmp_path)
    (root / SCHEMA).write_text("{}")
    (root / FIELDS).write_text((root / FIELDS).read_text().replace("cluster name", "something else"))
    (root / GOLDEN / "local.json").unlink()
    (root / GOLDEN / "gone.json").write_text("{}")
    (root / LAYOUTS / "p5.48xlarge.json").unlink()
    (root / LAYOUTS / "p9.48xlarge.json").write_text("{}")
    layouts = [LAYOUTS / "p5.48xlarge.json", LAYOUTS / "p9.48xlarge.json"]
    wrong = [SCHEMA, FIELDS, GOLDEN / "gone.json", *layouts, GOLDEN / "local.json"]
    assert find_stale(root) == wrong
    assert write_documents(root) == wrong
    assert find_stale(root) == []
    assert (root / FIELDS).read_text() == (ROOT / FIELDS).read_text()
    assert not (root / GOLDEN / "gone.json").exists()


def test_changed_example_makes_its_golden_copy_stale(tmp_path: Path) -> None:
    root = copy_documents(tmp_path)
    stack = root / "stacks" / "Pulumi.local.yaml"
    stack.write_text(stack.read_text().replace("count: 2\n", "count: 3\n"))
    assert find_stale(root) == [GOLDEN / "local.json"]


def test_user_stack_has_no_golden_copy(tmp_path: Path) -> None:
    root = copy_documents(tmp_path)
    shutil.copy(root / "stacks" / "Pulumi.local.yaml", root / "stacks" / "Pulumi.mine.yaml")
    (root / "stacks" / "Pulumi.unfinished.yaml").write_text("config: {")
    assert find_stale(root) == []
    assert write_documents(root) == []


def test_handwritten_text_is_kept(tmp_path: Path) -> None:
    root = copy_documents(tmp_path)
    (root / FIELDS).write_text("# Mine\n<!-- fields: begin -->\nold\n<!-- fields: end -->\nafter\n")
    write_documents(root)
    assert (
        root / FIELDS
    ).read_text() == f"# Mine\n<!-- fields: begin -->\n{render_field_table()}\n<!-- fields: end -->\nafter\n"


def test_aws_page_lists_the_rules(tmp_path: Path) -> None:
    root = copy_documents(tmp_path)
    page = (root / AWS).read_text()
    (root / AWS).write_text(page.replace("| `quota` |", "| `quotum` |"))
    assert find_stale(root) == [AWS]
    assert write_documents(root) == [AWS]
    assert (root / AWS).read_text() == page


def test_table_has_every_field() -> None:
    rows = render_field_table().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == [path for path, _ in walk(spec_model())]


def test_schema_contains_policies_and_limits() -> None:
    schema = json.loads((ROOT / SCHEMA).read_text())
    assert schema["required"] == ["name", "target", "groups"]
    assert schema["additionalProperties"] is False
    count = schema["$defs"]["NodeGroup"]["properties"]["count"]
    assert (count["policy"], count["anyOf"][0]["maximum"]) == ("drain", 1024)


# Mappings whose keys are names.
NAMED = (
    *("groups.", "storage.", "users.", "aws.hooks.", "slurm.partitions."),
    *("hosts.machines.", "hosts.jump_hosts.", "hosts.groups.", "hosts.switches.", "nebius.groups.", "azure.groups."),
)
STACK_FILES = sorted(f"stacks/Pulumi.{name}.yaml" for target in targets().values() for name in target.examples)


def test_every_stack_file_is_an_example_of_its_target() -> None:
    """Otherwise it has no golden copy. Users' own files in this folder are not in git."""
    command = ["git", "ls-files", "stacks/Pulumi.*.yaml"]
    listed = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True).stdout
    assert listed.splitlines() == STACK_FILES


@pytest.mark.parametrize("name", [*STACK_FILES, "examples/Pulumi.commented.yaml"])
def test_example_refers_to_its_schema(name: str) -> None:
    stack = ROOT / name
    reference = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", stack.read_text().splitlines()[0])
    assert reference
    path = (stack.parent / reference[1]).resolve()
    assert path == ROOT / STACK_SCHEMA
    config = json.loads(path.read_text())["properties"]["config"]
    assert (path.parent / config["properties"]["muster:cluster"]["$ref"]).resolve() == ROOT / SCHEMA


def test_full_examples_have_every_field() -> None:
    """Fields that exclude each other are comments in the examples, so read the files with comments removed."""
    named = {
        path
        for name in ("local", "aws", "azure", "hosts", "nebius")
        for path in _paths(_uncommented(f"Pulumi.{name}-full.yaml"))
    }
    assert {path for path, _ in walk(spec_model())} - named == set()


def test_smallest_example_has_only_required_fields() -> None:
    cluster = yaml.safe_load((ROOT / "stacks" / "Pulumi.local-required.yaml").read_text())["config"]["muster:cluster"]
    assert cluster == {"name": "small", "target": "local", "groups": {"cpu": {"count": 1}}}


def _uncommented(name: str) -> object:
    lines = dropwhile(lambda line: line.startswith("#"), (ROOT / "stacks" / name).read_text().splitlines())
    text = "\n".join(line.replace("# ", "", 1) if line.strip().startswith("# ") else line for line in lines)
    return yaml.safe_load(text)["config"]["muster:cluster"]


def _paths(data: object, prefix: str = "") -> list[str]:
    if not isinstance(data, dict):
        return []
    named = prefix in NAMED
    paths = []
    for key, value in data.items():
        path = f"{prefix}{'<name>' if named else key}"
        paths += [path, *_paths(value, f"{path}.")]
    return paths
