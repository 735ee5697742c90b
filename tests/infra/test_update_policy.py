"""Update policy: what each change is, which nodes it takes away, and when it is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cluster.spec import ClusterSpec
from cluster.spec.fields import policy_of, walk
from cluster.spec.issue import render
from infra.targets.registry import load_spec as load
from infra.targets.registry import spec_model
from infra.validate.update import affected, changes, violations
from tests.infra.bad_spec_table import good

Data = dict[str, Any]


def spec(**patch: Any) -> ClusterSpec:
    return load({**good(), **patch})


class Jobs:
    """What runs, by node and by user."""

    def __init__(self, by: dict[str, list[str]]) -> None:
        self.by = by

    def jobs(self, nodes: Sequence[str]) -> dict[str, list[str]]:
        return {node: ids for node, ids in self.by.items() if node in nodes}

    jobs_of = jobs


def running(**jobs: list[str]) -> Jobs:
    return Jobs({whose.replace("_", "-"): ids for whose, ids in jobs.items()})


idle = running()


TWO = {"gpu": {"count": 2}}
# title: old, new, what changes with which policy, nodes that go or are replaced
TABLE: dict[str, tuple[Data, Data, dict[str, str], tuple[str, ...]]] = {
    "nothing": ({}, {}, {}, ()),
    "grow": ({}, {"groups": {"gpu": {"count": 4}}}, {"groups.gpu.count": "safe"}, ()),
    "shrink": ({}, {"groups": {"gpu": {"count": 1}}}, {"groups.gpu.count": "drain"}, ("gpu-2",)),
    "shrink to none": (
        {},
        {"groups": {"gpu": {"count": 0}, "b": {"count": 1}}},
        {"groups.gpu.count": "drain", "groups.b": "safe"},
        ("gpu-1", "gpu-2"),
    ),
    "group added": ({}, {"groups": {**TWO, "b": {"count": 1}}}, {"groups.b": "safe"}, ()),
    "group removed": ({"groups": {**TWO, "b": {"count": 1}}}, {}, {"groups.b": "drain"}, ("b-1",)),
    "group renamed": (
        {},
        {"groups": {"b": {"count": 2}}},
        {"groups.gpu": "drain", "groups.b": "safe"},
        ("gpu-1", "gpu-2"),
    ),
    "groups reordered": (
        {"groups": {**TWO, "b": {"count": 1}}},
        {"groups": {"b": {"count": 1}, **TWO}},
        {},
        (),
    ),
    "nodes resized": (
        {},
        {"groups": {"gpu": {"count": 2, "size": {"cpus": 1}}}},
        {"groups.gpu.size.cpus": "replace"},
        ("gpu-1", "gpu-2"),
    ),
    "resized and shrunk": (
        {},
        {"groups": {"gpu": {"count": 1, "size": {"cpus": 1}}}},
        {"groups.gpu.size.cpus": "replace", "groups.gpu.count": "drain"},
        ("gpu-1", "gpu-2"),
    ),
    "GPUs added": (
        {},
        {"groups": {"gpu": {"count": 2, "gpus": {"count": 2}}}},
        {"groups.gpu.gpus.count": "replace"},
        ("gpu-1", "gpu-2"),
    ),
    "fabric of one group": (
        {"groups": {**TWO, "b": {"count": 1}}},
        {"groups": {**TWO, "b": {"count": 1, "fabric": "efa"}}},
        {"groups.b.fabric": "replace"},
        ("b-1",),
    ),
    "default size written out": ({}, {"groups": {"gpu": {"count": 2, "size": {"cpus": 2}}}}, {}, ()),
    "default size of the login node written out": (
        {},
        {"login": {"size": {"cpus": 2, "memory_mb": 1024}}},
        {},
        (),
    ),
    "login node resized": (
        {},
        {"login": {"size": {"cpus": 2, "memory_mb": 2048}}},
        {"login.size.memory_mb": "replace"},
        ("login",),
    ),
    "login node switched off": ({}, {"login": {"enabled": False}}, {"login.enabled": "drain"}, ("login",)),
    "login node switched on": ({"login": {"enabled": False}}, {}, {"login.enabled": "safe"}, ()),
    "port published": ({}, {"login": {"ssh_port": 2222}}, {"login.ssh_port": "replace"}, ("login",)),
    "controller resized": (
        {},
        {"controller": {"size": {"cpus": 1}}},
        {"controller.size.cpus": "replace"},
        ("controller",),
    ),
    "user added": (
        {},
        {"users": {"muster": {"uid": 2000}, "alice": {"uid": 2001}}},
        {"users.alice": "safe"},
        (),
    ),
    "user removed": ({"users": {"muster": {"uid": 2000}, "alice": {"uid": 2001}}}, {}, {"users.alice": "safe"}, ()),
    "user renumbered": ({}, {"users": {"muster": {"uid": 2001}}}, {"users.muster.uid": "forbidden"}, ()),
    "key added": (
        {},
        {"users": {"muster": {"uid": 2000, "ssh_keys": ["a"]}}},
        {"users.muster.ssh_keys": "safe"},
        (),
    ),
    "slurm setting": ({}, {"slurm": {"kill_wait_s": 5}}, {"slurm.kill_wait_s": "safe"}, ()),
    "slurm extra": ({}, {"slurm": {"extra": {"A": "1"}}}, {"slurm.extra.A": "safe"}, ()),
    "tag changed": ({"tags": {"a": "1"}}, {"tags": {"a": "2"}}, {"tags.a": "safe"}, ()),
    "storage added": (
        {},
        {"storage": {"shared": {}, "data": {"mount": "/data"}}},
        {"storage.data": "forbidden"},
        (),
    ),
    "mount moved": ({}, {"storage": {"shared": {"mount": "/x"}}}, {"storage.shared.mount": "forbidden"}, ()),
    "cluster renamed": ({}, {"name": "other"}, {"name": "forbidden"}, ()),
    "range set": ({}, {"network": {"cidr": "10.1.0.0/24"}}, {"network.cidr": "forbidden"}, ()),
}


@pytest.mark.parametrize(("before", "after", "policies", "nodes"), TABLE.values(), ids=TABLE)
def test_change(before: Data, after: Data, policies: dict[str, str], nodes: tuple[str, ...]) -> None:
    old, new = spec(**before), spec(**after)
    assert {change.path: change.policy for change in changes(old, new)} == policies
    assert affected(old, new) == nodes


def test_a_replaced_version_concerns_every_node() -> None:
    old = spec()
    new = old.model_copy(update={"software": old.software.model_copy(update={"slurm": "25.05"})})
    assert affected(old, new) == ("controller", "login", "gpu-1", "gpu-2")


def test_every_field_has_a_policy() -> None:
    assert {policy_of(info) for _, info in walk(spec_model())} == {"safe", "drain", "replace", "forbidden"}


def test_growth_is_allowed_while_jobs_run() -> None:
    busy = running(gpu_1=["7"], gpu_2=["7"])
    assert violations(spec(), spec(groups={"gpu": {"count": 4}}), busy) == []


def test_shrinking_is_allowed_when_the_nodes_that_go_are_idle() -> None:
    assert violations(spec(), spec(groups={"gpu": {"count": 1}}), running(gpu_1=["7"])) == []


def test_shrinking_a_busy_node_is_refused() -> None:
    issues = violations(spec(), spec(groups={"gpu": {"count": 1}}), running(gpu_1=["7"], gpu_2=["7", "9"]))
    assert render(issues) == (
        "error    groups.gpu\n"
        "         node gpu-2 would be removed but is running jobs 7, 9\n"
        "         fix: wait for them, cancel them with `scancel 7 9`, "
        "or requeue the jobs with `make up FORCE=1`\n"
        "\n"
        "1 error"
    )


def test_replacing_a_busy_node_is_refused() -> None:
    new = spec(groups={"gpu": {"count": 2, "gpus": {"count": 1}}})
    issues = violations(spec(), new, running(gpu_1=["7"]))
    assert [(i.where, i.message, i.fix) for i in issues] == [
        (
            "groups.gpu",
            "node gpu-1 would be replaced but is running job 7",
            "wait for it, cancel it with `scancel 7`, or requeue the job with `make up FORCE=1`",
        )
    ]


def test_force_overrides_jobs() -> None:
    new = spec(groups={"gpu": {"count": 1}})
    assert violations(spec(), new, running(gpu_2=["7"]), force=True) == []


def test_forbidden_is_refused_even_with_force() -> None:
    new = spec(network={"egress": False}, name="other")
    issues = violations(spec(), new, idle, force=True)
    assert [(i.where, i.message, i.fix) for i in issues] == [
        (
            "name",
            'cannot change from "demo" to "other" while the cluster exists',
            'write "demo" again, or `make teardown` and then `make up`',
        ),
        (
            "network.egress",
            "cannot change from true to false while the cluster exists",
            "write true again, or `make teardown` and then `make up`",
        ),
    ]


def test_what_was_unset_is_said_so() -> None:
    issues = violations(spec(), spec(network={"cidr": "10.1.0.0/24"}), idle)
    assert [(i.message, i.fix) for i in issues] == [
        (
            'cannot change from unset to "10.1.0.0/24" while the cluster exists',
            "remove it, or `make teardown` and then `make up`",
        )
    ]


def test_the_controller_is_not_replaced_by_accident() -> None:
    new = spec(controller={"size": {"cpus": 1}})
    issues = violations(spec(), new, running(gpu_1=["7"]))
    assert [(i.code, i.where) for i in issues] == [("controller_replaced", "controller"), ("node_busy", "groups.gpu")]
    assert issues[1].message == "node gpu-1 would lose its controller but is running job 7"
    assert issues[1].fix == "wait for it, cancel it with `scancel 7`, or lose it with `make up FORCE=1`"
    assert violations(spec(), new, running(gpu_1=["7"]), force=True) == []


MUSTER, ALICE, BOB = {"muster": {"uid": 2000}}, {"alice": {"uid": 2001}}, {"bob": {"uid": 2002}}
DROPPED = (
    "users",
    "writing users replaces the default user 'muster', who exists on this cluster",
    "add `muster: {uid: 2000}` to keep it, or remove it with `make up FORCE=1`",
)
# title: users before and after, what runs, where, what and fix of every refusal
REMOVED: dict[str, tuple[Data | None, Data, Jobs, list[tuple[str, str, str]]]] = {
    "one whose jobs run": (
        {**ALICE, **BOB},
        BOB,
        running(alice=["7", "8_1"], bob=["9"]),
        [
            (
                "users.alice",
                "user alice would be removed but is running jobs 7, 8_1",
                "wait for them, cancel them with `scancel 7 8_1`, or end them with `make up FORCE=1`",
            )
        ],
    ),
    "one without jobs": ({**ALICE, **BOB}, BOB, running(bob=["9"]), []),
    "the default, by writing another": (None, ALICE, idle, [DROPPED]),
    "the default, whose job runs": (
        None,
        ALICE,
        running(muster=["7"]),
        [
            DROPPED,
            (
                "users.muster",
                "user muster would be removed but is running job 7",
                "wait for it, cancel it with `scancel 7`, or end it with `make up FORCE=1`",
            ),
        ],
    ),
    "the default's namesake, by hand": ({**MUSTER, **ALICE}, ALICE, idle, []),
    "nobody": (MUSTER, {**MUSTER, **ALICE}, running(muster=["7"]), []),
}


@pytest.mark.parametrize(("before", "after", "jobs", "expected"), REMOVED.values(), ids=REMOVED)
def test_user_removed(before: Data | None, after: Data, jobs: Jobs, expected: list[tuple[str, str, str]]) -> None:
    old, new = spec(**({"users": before} if before else {})), spec(users=after)
    assert [(i.where, i.message, i.fix) for i in violations(old, new, jobs)] == expected
    assert violations(old, new, jobs, force=True) == []


def test_queue_is_not_queried_without_need() -> None:
    class UnexpectedQuery(Jobs):
        def jobs(self, nodes: Sequence[str]) -> dict[str, list[str]]:
            raise AssertionError(nodes)

        jobs_of = jobs

    assert violations(spec(), spec(tags={"a": "1"}), UnexpectedQuery({})) == []
