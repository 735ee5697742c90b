"""Check of the end of a cluster: only the state says whether the machines have it already."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.cluster_end import describe_time_left, is_near
from infra.targets.aws.preflight.subject import Subject
from infra.targets.aws.spec import END_FORMAT, aws_section, read_end


def check_end(subject: Subject) -> Iterator[Issue]:
    """Report an end that is less than an hour ahead; another rule reports one that has passed."""
    # The clock of this computer is right enough: AWS refuses requests of one that is 5 minutes off.
    section, now = aws_section(subject.spec), datetime.now(UTC)
    end = read_end(section) if section else None
    if section is None or end is None or not is_near(section, now):
        return
    written, left = section.ends_at, describe_time_left(end, now)
    if subject.exists:
        message = f"'{written}' is {left} ahead: every machine ends itself then, even if jobs are running"
        fix = "save what you need; `make teardown`, then write a later time or remove it"
        yield warning("end_near", "aws.ends_at", message, fix)
    else:
        message = f"'{written}' is {left} ahead; allowed: an hour or more, so that the cluster can be used"
        fix = f"write a later time (it is {now.strftime(END_FORMAT)} now), or remove it"
        yield error("end_near", "aws.ends_at", message, fix)
