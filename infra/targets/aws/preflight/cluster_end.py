"""Check of the end of a cluster: only the state says whether the machines have it already."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.preflight.subject import Subject
from infra.targets.aws.spec import aws_section, read_end

LEAST = timedelta(hours=1)
"""A cluster needs a part of this to be created."""


def check_end(subject: Subject) -> Iterator[Issue]:
    """Report an end that is less than an hour ahead; another rule reports one that has passed."""
    section = aws_section(subject.spec)
    end = read_end(section) if section else None
    if section is None or end is None or end - datetime.now(UTC) >= LEAST:
        return
    written = section.ends_at
    if subject.exists:
        message = f"'{written}' is less than an hour ahead: every machine ends itself then, jobs or not"
        fix = "save what you need; `make teardown`, then write a later time or remove it"
        yield warning("end_near", "aws.ends_at", message, fix)
    else:
        message = f"'{written}' is less than an hour ahead; allowed: an hour or more, so that the cluster can be used"
        yield error("end_near", "aws.ends_at", message, "write a later time, or remove it")
