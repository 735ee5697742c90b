"""Rules on a spec of which some sections cannot be read: what is wrong with the others is said in the same breath."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, SpecError
from infra.targets.registry import load_spec
from infra.targets.target import HostFacts
from infra.validate.rules import validate

# What stands in for a section that has no default.
STAND_IN: dict[str, Any] = {"name": "unread", "groups": {"unread": {"count": 1}}}
# Rules of one section that look at another.
LOOKS_AT = {"no_such_group": "groups"}


def rest(data: Any, problems: Sequence[Issue], host: HostFacts | None = None, root: Path | None = None) -> list[Issue]:
    """Issues of the sections of `data` in which `problems` found nothing; none where the target itself is unknown."""
    bad = {section(problem.where) for problem in problems}
    spec = _readable(data, bad)
    if spec is None:
        return []
    found = validate(spec, host, root)
    return [i for i in found if section(i.where) not in bad and LOOKS_AT.get(i.code) not in bad]


def section(where: str) -> str:
    return re.split(r"[.\[]", where, maxsplit=1)[0]


def _readable(data: Any, bad: set[str]) -> ClusterSpec | None:
    if not isinstance(data, dict) or "target" in bad:
        return None
    kept = {key: value for key, value in data.items() if key not in bad}
    try:
        return load_spec({key: value for key, value in STAND_IN.items() if key in bad} | kept)
    except SpecError:
        return None
