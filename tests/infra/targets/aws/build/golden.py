"""Golden copies of the resources of each example stack; `make golden` writes them again."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.infra.targets.aws.build.capture import ROOT, STACKS, CapturedResource, example

FOLDER = ROOT / "tests" / "golden" / "aws"
SECRET, USER_DATA, DIGEST, SPEC = "<secret>", "<user data>", "<digest>", "<spec>"
# What follows from the contents of the repository would change with every commit.
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
    """Those that were not as they should be."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    expected = {path(stack): text(example(stack)) for stack in STACKS}
    changed = [file for file, content in expected.items() if not file.exists() or file.read_text() != content]
    for file in changed:
        file.write_text(expected[file])
    for gone in set(FOLDER.glob("*.json")) - set(expected):
        gone.unlink()
        changed.append(gone)
    return changed


def _entry(resource: CapturedResource) -> dict[str, Any]:
    """Options only where they are set."""
    options = {key: value for key, value in resource.options.items() if value and key != "dependencies"}
    shown = {key: _shown(key, value, resource) for key, value in sorted(resource.props.items()) if value is not None}
    return {
        "type": resource.type,
        "name": resource.name,
        **({"options": options} if options else {}),
        "properties": shown,
    }


def _shown(key: str, value: Any, resource: CapturedResource) -> Any:
    if key in resource.secrets or key in resource.options["additionalSecretOutputs"]:
        return SECRET
    if key in _USER_DATA:
        return USER_DATA
    if key == "spec":
        return SPEC
    return _masked(_parsed(value))


def _parsed(value: Any) -> Any:
    """Documents as documents: a difference in a policy is then one line."""
    if isinstance(value, str) and value.startswith("{"):
        return json.loads(value)
    return value


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _masked(resource) for key, resource in value.items()}
    if isinstance(value, list):
        return [_masked(resource) for resource in value]
    return _DIGEST.sub(DIGEST, value) if isinstance(value, str) else value


if __name__ == "__main__":
    for written in write_all():
        sys.stdout.write(f"{written.relative_to(ROOT)}\n")
