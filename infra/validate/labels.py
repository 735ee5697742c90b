"""Rules about tags: they become labels, beside the ones the cluster is found by."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error
from cluster.spec.written import path

RESERVED = ("muster.", "com.docker.", "aws:")
KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,126}")
LONGEST = 255


def tags(spec: ClusterSpec) -> Iterator[Issue]:
    for key, value in spec.tags.items():
        where = path(("tags", key))
        if not KEY.fullmatch(key):
            message = (
                "is not a key; allowed: letters, digits and . _ : / - , at most 127, beginning with a letter or digit"
            )
            yield error("tag_key", where, message, "rename it")
        elif key.lower().startswith(RESERVED):
            message = f"begins with what others own; taken: {', '.join(RESERVED)}"
            yield error("tag_reserved", where, message, "rename it")
        if len(value) > LONGEST or not value.isprintable():
            message = f"has {len(value)} characters, or one that cannot be printed; allowed: {LONGEST} on one line"
            yield error("tag_value", where, message, "shorten it to one line")
