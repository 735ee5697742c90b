"""Rules on tags: they become labels, next to the labels by which muster identifies the cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error
from cluster.spec.written import path
from infra.targets.registry import targets

OWN_PREFIX = "muster."
KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,126}")
MAX_VALUE_LENGTH = 255


def check_tags(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse keys that are malformed or reserved, and values that are too long or not printable."""
    reserved = (OWN_PREFIX, *(prefix for target in targets().values() for prefix in target.reserved_tags))
    for key, value in spec.tags.items():
        where = path(("tags", key))
        if not KEY.fullmatch(key):
            allowed = "at most 127 letters, digits and . _ : / -, beginning with a letter or digit"
            message = f"is not a valid key; allowed: {allowed}"
            yield error("tag_key", where, message, "rename it")
        elif key.lower().startswith(reserved):
            message = f"begins with a reserved prefix; reserved: {', '.join(reserved)}"
            yield error("tag_reserved", where, message, "rename it")
        if len(value) > MAX_VALUE_LENGTH or not value.isprintable():
            allowed = f"at most {MAX_VALUE_LENGTH} printable characters on one line"
            message = f"has {len(value)} characters, or some that cannot be printed; allowed: {allowed}"
            yield error("tag_value", where, message, "shorten it to one line")
