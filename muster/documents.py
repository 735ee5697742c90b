"""Generate documents from the spec model, the catalog and the rules: JSON schemas, tables, golden plans, layouts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from cluster.spec.fields import expected, part_of, policy_of, slot_of, walk
from cluster.spec.written import inline
from infra.targets.registry import plan_of, read_spec, spec_model, targets
from slurm.health.registry import CHECKS

SCHEMA = Path("docs/cluster.schema.json")
STACK_SCHEMA = Path("docs/stack.schema.json")
FIELDS = Path("docs/spec.md")
HEALTH = Path("docs/health.md")
GOLDEN = Path("tests/golden")
BEGIN, END = "<!-- {name}: begin -->", "<!-- {name}: end -->"


def write_documents(root: Path) -> list[Path]:
    """Write or delete the documents that are out of date, and return their paths."""
    changed = find_stale(root)
    texts = render_documents(root)
    for path in changed:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if path in texts:
            (root / path).write_text(texts[path], encoding="utf-8")
        else:
            (root / path).unlink()
    return changed


def find_stale(root: Path) -> list[Path]:
    """Return the documents that are missing, out of date, or of a deleted example; paths are relative to `root`."""
    texts = render_documents(root)
    folders = {path.parent for path in texts if path.is_relative_to(GOLDEN)}
    golden_files = [path.relative_to(root) for folder in sorted(folders) for path in (root / folder).glob("*.json")]
    obsolete = [path for path in golden_files if path not in texts]
    return sorted([*(path for path, text in texts.items() if _text(root / path) != text), *obsolete])


def render_documents(root: Path) -> dict[Path, str]:
    """Return the text of each generated document, by path."""
    golden = {GOLDEN / f"{name}.json": text for name, text in _plans(root / "stacks")}
    derived = {GOLDEN / path: text for target in targets().values() for path, text in target.golden_files().items()}
    pages = {
        FIELDS: _page(root / FIELDS, {"fields": render_field_table()}),
        HEALTH: _page(root / HEALTH, {"checks": render_check_table()}),
    }
    for target in targets().values():
        pages |= {Path(page): _page(root / page, blocks) for page, blocks in target.document_blocks().items()}
    return {SCHEMA: render_schema(), STACK_SCHEMA: render_stack_schema(), **pages, **golden, **derived}


def render_schema() -> str:
    """Return the JSON schema of the value of `muster:cluster`."""
    return _json({"$schema": "https://json-schema.org/draft/2020-12/schema", **spec_model().model_json_schema()})


def render_stack_schema() -> str:
    """Return the JSON schema of a whole stack file, for editors; it refers to the schema of the cluster next to it."""
    cluster = {"$ref": SCHEMA.name, "description": "The cluster; docs/spec.md explains every field."}
    config = {"type": "object", "properties": {"muster:cluster": cluster}, "required": ["muster:cluster"]}
    whole = {"title": "muster stack file", "type": "object", "properties": {"config": config}, "required": ["config"]}
    return _json({"$schema": "https://json-schema.org/draft/2020-12/schema", **whole})


def render_field_table() -> str:
    """Return the Markdown table of all fields of the spec."""
    head = ["| field | allowed | default | change | meaning |", "|---|---|---|---|---|"]
    rows = (
        f"| `{path}` | {_allowed(info)} | {_default(info)} | {_policy(info)} | {info.description} |"
        for path, info in walk(spec_model())
    )
    return "\n".join([*head, *rows])


def render_check_table() -> str:
    """Return the Markdown table of all health checks."""
    head = ["| check | on a healthy node | when | limit | blamed | a drain ends by |", "|---|---|---|---|---|---|"]
    rows = (
        f"| `{check.name}` | {check.about} | {', '.join(check.contexts)} | {check.limit_s:g} s | {check.blame} | "
        f"{', '.join(check.remedies) or 'never drains'} |"
        for check in CHECKS
    )
    return "\n".join([*head, *rows])


def _plans(stacks: Path) -> Iterator[tuple[str, str]]:
    # Stack files that users add have no golden copy.
    for name in (name for target in targets().values() for name in target.examples):
        yield name, _json(plan_of(read_spec(stacks / f"Pulumi.{name}.yaml")).model_dump(mode="json"))


def _page(page: Path, blocks: Mapping[str, str]) -> str:
    """Return the page with each block between its marks replaced; the text around them stays."""
    text = _text(page) or ""
    for name, block in blocks.items():
        begin, end = BEGIN.format(name=name), END.format(name=name)
        before, mark, remainder = text.partition(begin)
        after = remainder.partition(end)[2] if mark else "\n"
        text = f"{before}{begin}\n{block}\n{end}{after}"
    return text


def _allowed(info: FieldInfo) -> str:
    return "a mapping; its keys follow" if part_of(info.annotation) else expected(slot_of(info))


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "**required**"
    if info.default is None or part_of(info.annotation):
        return ""
    return f"`{inline(to_jsonable_python(info.default, exclude_none=True))}`"


def _policy(info: FieldInfo) -> str:
    """Return the update policy; empty for a mapping that always exists, because only its fields can change."""
    return "" if part_of(info.annotation) and info.default is not None else policy_of(info)


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
