"""What a rehearsal would have been billed by AWS up to each moment: machines, NAT gateways and Lustre."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from infra.targets.aws.rehearse.timeline import Event, ShortenedTime

_HOUR_S = 3600.0
# An instance is billed while it runs: not while it is pending, and no more once it shuts down
# (docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-lifecycle.html). Other things are billed once there.
_FREE_STATES = frozenset(
    {"pending", "creating", "shutting down", "lost", "stopping", "stopped", "terminated", "deleting", "deleted"}
)

Point = tuple[float, float]
"""Seconds since the rehearsal began, and USD until then."""


def compute_bill(
    events: Sequence[Event],
    usd_per_hour: Mapping[str, float],
    shortened: Sequence[ShortenedTime],
    speed: float,
    end_s: float,
) -> list[Point]:
    """Return the running bill in USD at each moment at which its slope changes; `usd_per_hour` is by subject.

    A shortened second counts as `speed` seconds for everybody. What this machine works meanwhile is counted with it, so
    that the sum is rather too high than too low.
    """
    edges = {0.0, end_s, *(event.at_s for event in events)}
    edges |= {edge for span in shortened for edge in (span.begin_s, span.end_s)}
    moments = sorted(edge for edge in edges if 0 <= edge <= end_s)
    points, usd = [(0.0, 0.0)], 0.0
    for begin_s, next_s in pairwise(moments):
        share = max((span.share for span in shortened if span.begin_s <= begin_s < span.end_s), default=0.0)
        on_aws_s = (next_s - begin_s) * (1 + (speed - 1) * share)
        usd += on_aws_s / _HOUR_S * rate_at(events, usd_per_hour, begin_s)
        points.append((next_s, usd))
    return points


def read_bill(points: Sequence[Point], at_s: float) -> float:
    """Return the USD that were billed until a moment."""
    for (begin_s, usd), (end_s, next_usd) in pairwise(points):
        if begin_s <= at_s <= end_s:
            share = (at_s - begin_s) / (end_s - begin_s) if end_s > begin_s else 1.0
            return usd + (next_usd - usd) * share
    return points[-1][1]


def rate_at(events: Sequence[Event], usd_per_hour: Mapping[str, float], at_s: float) -> float:
    """Return what is billed per hour at a moment."""
    states = {event.subject: event.what for event in events if event.at_s <= at_s}
    return sum(usd_per_hour.get(subject, 0.0) for subject, state in states.items() if state not in _FREE_STATES)
