"""Scenarios of a rehearsal: what goes wrong in the cloud, and what must hold nevertheless.

Their steps are in scenario_steps.py, so that the names are known before moto is imported, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from infra.engine.stop import BAD_INPUT, Stop
from infra.targets.aws.rehearse.delays import THROTTLED_SHARE


@dataclass(frozen=True)
class Scenario:
    """What is injected, empty if nothing is, and what must hold."""

    injects: str
    holds: str
    shares: Literal["no", "first", "yes"] = "no"
    """Whether it can share a cluster with others: not at all, only as the first of them, or at any place."""

    def __str__(self) -> str:
        return f"{self.injects}: {self.holds}" if self.injects else self.holds


SCENARIOS: Mapping[str, Scenario] = {
    "job": Scenario("", "a job runs on two nodes", shares="yes"),
    "training": Scenario("", "the trainer completes all steps on two nodes", shares="yes"),
    "no-capacity-controller": Scenario(
        "no capacity for the controller", "`up` says so, and the next `up` continues", shares="first"
    ),
    "no-capacity-nodes": Scenario(
        "no capacity for nodes", "nodes show the reason, and the job runs once there is some", shares="first"
    ),
    "no-spot": Scenario("no spot capacity", "the job runs on the fallback"),
    "idle": Scenario(
        "nodes have no job", "Slurm releases them, nothing of them is billed, the next job launches them again"
    ),
    "dead-node": Scenario(
        "a machine dies under a job",
        "the job is requeued and runs on a new machine; `muster logs` has the logs of the dead one",
        shares="yes",
    ),
    "spot-notice": Scenario(
        "a spot instance is reclaimed", "the trainer saves in time and continues on a new machine", shares="yes"
    ),
    "spot-notice-early": Scenario(
        "a spot instance is reclaimed while its node is set up",
        "the job does not wait for the node, and runs on a new machine",
    ),
    "failed-prolog": Scenario("a GPU breaks on an idle node", "the node is drained and reboots", shares="yes"),
    "dead-controller": Scenario("the controller dies", "`up` replaces it, and queue and jobs survive", shares="yes"),
    "dead-controller-early": Scenario("the controller dies while nodes start", "`up` replaces it, and the job runs"),
    "resize": Scenario("a group grows and shrinks", "jobs run on all of its nodes", shares="yes"),
    "upgrade": Scenario(
        "another release of Slurm is installed", "jobs and queue survive, new nodes get it, and it can be undone"
    ),
    "image-refresh": Scenario(
        "all machines are replaced with ones from baked images, group by group",
        "the queue survives, and machines install nothing when they boot",
    ),
    "hooks": Scenario(
        "the spec has hooks and a role for jobs",
        "hooks run before jobs do; a job reads its object with that role, and metadata stays closed to it",
    ),
    "end": Scenario(
        "nobody removes a cluster whose spec has an end", "every machine ends itself, and `teardown` removes the rest"
    ),
    "throttling": Scenario(f"{THROTTLED_SHARE:.0%} of all calls are throttled", "a job runs on two nodes"),
    "late-listing": Scenario("new instances are listed late", "nothing is launched twice"),
}
"""Scenarios by name; the first one is the default."""
PASSED = "passed, before teardown: "
"""Begins the line about each scenario of those that share a cluster."""
_SHARING = ("first", "yes")


def split_scenarios(names: str) -> list[str]:
    """Return the scenarios that run one after the other on one cluster; raise Stop if they cannot share it."""
    chosen = names.split(",")
    for number, name in enumerate(chosen):
        shares = SCENARIOS[name].shares
        if len(chosen) > 1 and (shares == "no" or (shares == "first" and number) or name in chosen[:number]):
            first, any_place = (
                ", ".join(other for other, case in SCENARIOS.items() if case.shares == place) for place in _SHARING
            )
            what = f"--scenario: '{names}' is not allowed: {name} cannot share this cluster"
            allowed = f"allowed: each of these once: {any_place}; before them one of {first}"
            raise Stop(f"{what}; {allowed}", f"--scenario {name}, which rehearses it alone", BAD_INPUT)
    return chosen
