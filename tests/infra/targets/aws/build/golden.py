"""Golden copies of the resources of each example stack; `make golden` updates them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.infra.targets.aws.build.capture import ROOT, STACKS, CapturedResource, example

FOLDER = ROOT / "tests" / "golden" / "aws"
SECRET, USER_DATA, DIGEST, SPEC = "<secret>", "<user data>", "<digest>", "<spec>"
# Digests of the repository's contents would change with every commit.
_DIGEST = re.compile(r"\b([0-9a-f]{64}|[0-9a-f]{16})\b")
_USER_DATA = ("userData", "userDataBase64", "script")


def path(stack: str) -> Path:
    return FOLDER / f"{stack}.json"


def text(resources: tuple[CapturedResource, ...]) -> str:
    return (
        json.dumps(
            [_entry(resource) for resource in resources if resource.custom],
            indent=1,
            ensure_ascii=False,
            sort_keys=True,
        )
        + "\n"
    )


def write_all() -> list[Path]:
    """Update the golden copies and return those that changed."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    expected = {path(stack): text(example(stack)) for stack in STACKS}
    changed = [file for file, content in expected.items() if not file.exists() or file.read_text() != content]
    for file in changed:
        file.write_text(expected[file])
    for outdated in set(FOLDER.glob("*.json")) - set(expected):
        outdated.unlink()
        changed.append(outdated)
    return changed


def _entry(resource: CapturedResource) -> dict[str, Any]:
    """Return a resource as JSON data, with only those options that are set."""
    options = {key: value for key, value in resource.options.items() if value and key != "dependencies"}
    properties = {
        key: _render(key, value, resource) for key, value in sorted(resource.props.items()) if value is not None
    }
    return {
        "type": resource.type,
        "name": resource.name,
        **({"options": options} if options else {}),
        "properties": properties,
    }


def _render(key: str, value: Any, resource: CapturedResource) -> Any:
    if key in resource.secrets or key in resource.options["additionalSecretOutputs"]:
        return SECRET
    if key in _USER_DATA:
        return USER_DATA
    if key == "spec":
        return SPEC
    return _mask_digests(_parse(value))


def _parse(value: Any) -> Any:
    """Parse JSON documents, so that a changed policy gives a small difference."""
    if isinstance(value, str) and value.startswith("{"):
        return json.loads(value)
    return value


def _mask_digests(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _mask_digests(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_mask_digests(item) for item in value]
    return _DIGEST.sub(DIGEST, value) if isinstance(value, str) else value


if __name__ == "__main__":
    for written in write_all():
        sys.stdout.write(f"{written.relative_to(ROOT)}\n")
