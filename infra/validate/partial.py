"""Validation of a spec of which some sections cannot be read: the rules still apply to the other sections."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, SpecError
from infra.targets.mixins import HostFacts
from infra.targets.registry import load_spec
from infra.validate.registry import validate

# Values for unreadable sections that have no default.
PLACEHOLDERS: dict[str, Any] = {"name": "unread", "groups": {"unread": {"count": 1}}}
# The section that a rule reads besides the one it reports on, by the rule's code.
ALSO_READS = dict.fromkeys(("no_such_group", "reserved_partition", "partition_group"), "groups")


def validate_readable(
    data: Any, load_issues: Sequence[Issue], host: HostFacts | None = None, root: Path | None = None
) -> list[Issue]:
    """Return the issues of the sections of `data` in which loading found none; none at all if the target is invalid."""
    unreadable = {section_of(issue.where) for issue in load_issues}
    spec = _load_readable(data, unreadable)
    if spec is None:
        return []
    issues = validate(spec, host, root)
    return [i for i in issues if section_of(i.where) not in unreadable and ALSO_READS.get(i.code) not in unreadable]


def section_of(where: str) -> str:
    """Return the top-level section of a property path."""
    return re.split(r"[.\[]", where, maxsplit=1)[0]


def _load_readable(data: Any, unreadable: set[str]) -> ClusterSpec | None:
    if not isinstance(data, dict) or "target" in unreadable:
        return None
    readable = {key: value for key, value in data.items() if key not in unreadable}
    placeholders = {key: value for key, value in PLACEHOLDERS.items() if key in unreadable}
    try:
        return load_spec(placeholders | readable)
    except SpecError:
        return None
