"""Update policy: the policy of each change, the nodes that it removes or replaces, and when it is an error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from cluster.spec import ClusterSpec
from cluster.spec.fields import policy_of, walk
from cluster.spec.issue import render
from infra.targets.registry import load_spec as load
from infra.targets.registry import spec_model
from infra.validate import update
from infra.validate.update import affected, changes, violations
from tests.infra.bad_spec_table import valid_spec
from tests.infra.running_jobs import Jobs

Data = dict[str, Any]


def spec(**patch: Any) -> ClusterSpec:
    return load({**valid_spec(), **patch})


def running(**jobs: list[str]) -> Jobs:
    return Jobs({owner.replace("_", "-"): ids for owner, ids in jobs.items()})


idle = running()


TWO = {"gpu": {"count": 2}}
# title: old spec, new spec, policy of each change, nodes that are removed or replaced
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


OLD, NEW = {"software": {"slurm": "24.11"}}, {"software": {"slurm": "26.05"}}


@pytest.mark.parametrize(
    ("before", "after", "fix"),
    [
        (OLD, NEW, 'run `make upgrade TO=26.05`, or write `software: {slurm: "24.11"}` to keep the present release'),
        # The file has never named a release, and the default has changed since the cluster was created.
        (OLD, {}, 'run `make upgrade TO=26.05`, or write `software: {slurm: "24.11"}` to keep the present release'),
        (NEW, OLD, 'write `software: {slurm: "26.05"}`: Slurm cannot go back to an older release'),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_up_never_changes_the_release_of_slurm(before: Data, after: Data, fix: str, force: bool) -> None:
    old, new = spec(**before), spec(**after)
    assert affected(old, new) == ()
    issues = violations(old, new, Jobs({}, old.software.slurm), force=force)
    releases = f'from "{old.software.slurm}" to "{new.software.slurm}"'
    assert [(i.where, i.message, i.fix) for i in issues] == [
        ("software.slurm", f"`up` cannot change the release {releases}", fix)
    ]


def test_a_target_that_cannot_upgrade_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "Upgrades", type("Nothing", (), {}))
    (issue,) = violations(spec(**OLD), spec(**NEW), Jobs({}))
    assert issue.fix == (
        'write `software: {slurm: "24.11"}`: target local cannot upgrade running nodes. A new cluster can have 26.05'
    )


def test_the_state_of_a_cluster_names_its_release_even_if_its_file_does_not() -> None:
    # Otherwise `up` would take another default for the release that runs.
    assert json.loads(spec().model_dump_json())["software"]["slurm"] == spec().software.slurm


def test_up_adopts_the_release_that_an_upgrade_installed() -> None:
    assert violations(spec(**OLD), spec(**NEW), Jobs({"gpu-1": ["7"]}, "26.05")) == []


def test_every_field_has_a_policy() -> None:
    assert {policy_of(info) for _, info in walk(spec_model())} == {"safe", "drain", "replace", "upgrade", "forbidden"}


def test_growth_is_allowed_while_jobs_are_running() -> None:
    busy = running(gpu_1=["7"], gpu_2=["7"])
    assert violations(spec(), spec(groups={"gpu": {"count": 4}}), busy) == []


def test_removing_idle_nodes_is_allowed() -> None:
    assert violations(spec(), spec(groups={"gpu": {"count": 1}}), running(gpu_1=["7"])) == []


def test_removing_a_busy_node_is_an_error() -> None:
    issues = violations(spec(), spec(groups={"gpu": {"count": 1}}), running(gpu_1=["7"], gpu_2=["7", "9"]))
    assert render(issues) == (
        "error    groups.gpu\n"
        "         node gpu-2 would be removed but is running jobs 7, 9\n"
        "         fix: wait for them, cancel them with `scancel 7 9`, "
        "or requeue the jobs with `make up FORCE=1`\n"
        "\n"
        "1 error"
    )


def test_replacing_a_busy_node_is_an_error() -> None:
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


def test_forbidden_change_is_an_error_even_with_force() -> None:
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


def test_unset_value_is_shown_as_unset() -> None:
    issues = violations(spec(), spec(network={"cidr": "10.1.0.0/24"}), idle)
    assert [(i.message, i.fix) for i in issues] == [
        (
            'cannot change from unset to "10.1.0.0/24" while the cluster exists',
            "remove it, or `make teardown` and then `make up`",
        )
    ]


def test_replacing_the_controller_is_an_error_without_force() -> None:
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
# title: users before and after, running jobs, path, message and fix of every issue
REMOVED: dict[str, tuple[Data | None, Data, Jobs, list[tuple[str, str, str]]]] = {
    "user with running jobs": (
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
    "user without jobs": ({**ALICE, **BOB}, BOB, running(bob=["9"]), []),
    "default user, by adding another": (None, ALICE, idle, [DROPPED]),
    "default user with a running job": (
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
    "written user with the default name": ({**MUSTER, **ALICE}, ALICE, idle, []),
    "no user removed": (MUSTER, {**MUSTER, **ALICE}, running(muster=["7"]), []),
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
