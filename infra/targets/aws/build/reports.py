"""What machines have said of themselves, and what follows for the one who waits for them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from infra.targets.aws.node.parameters import Report

Verdict = Literal["ready", "coming", "stale"]
LOG = "/var/log/muster/node.log"


@dataclass(frozen=True)
class Wanted:
    """Who has to be ready, and with what."""

    nodes: Mapping[str, str]
    """Instance by name; empty where any machine of that name will do."""
    bundle: str


@dataclass(frozen=True)
class Failure:
    node: str
    report: Report

    def __str__(self) -> str:
        return f"node {self.node} failed at {self.report.step}: {self.report.line.rstrip('.')}"


def verdict(wanted: Wanted, node: str, report: Report | None) -> Verdict:
    """`stale`: the machine is there and at rest, but not as wanted: what it is to do has to be done again."""
    if report is None or wanted.nodes[node] not in ("", report.instance):
        return "coming"
    if report.state == "working":
        return "coming"
    return "ready" if (report.state, report.bundle) == ("ready", wanted.bundle) else "stale"


def unfinished(wanted: Wanted, reports: Mapping[str, Report]) -> list[str]:
    return [node for node in wanted.nodes if verdict(wanted, node, reports.get(node)) != "ready"]


def stale(wanted: Wanted, reports: Mapping[str, Report]) -> dict[str, str]:
    """Instance by node: those that must be told to do it again."""
    return {
        node: reports[node].instance for node in wanted.nodes if verdict(wanted, node, reports.get(node)) == "stale"
    }


def failures(wanted: Wanted, before: Mapping[str, Report], now: Mapping[str, Report]) -> list[Failure]:
    """Failures that are news: what a machine said before it was told to do it again does not count."""
    seen = [(node, now[node]) for node in wanted.nodes if verdict(wanted, node, now.get(node)) == "stale"]
    return [Failure(node, one) for node, one in seen if one.state == "failed" and one != before.get(node)]


def state_of(report: Report | None) -> str:
    """For those who wait, in a few words."""
    if report is None:
        return "has not reported yet"
    return f"{report.state} at {report.step}" if report.state != "ready" else "ready, but as another machine or bundle"
