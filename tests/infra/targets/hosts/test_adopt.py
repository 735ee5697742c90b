"""What belongs to an adopted host, without a machine: its claim, login, node and receipt, and changes of the spec."""

from __future__ import annotations

import json
import subprocess
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bootstrap.changes import Restoration
from bootstrap.transport.base import Completed, TransportError
from bootstrap.transport.host_login import HostLogin
from cluster.inventory import Adopted
from infra.home import Home
from infra.resources.error import ResourceError
from infra.targets.hosts import adopt
from infra.targets.hosts.build.cluster import build_inventory
from infra.targets.hosts.build.host import HostProvider
from infra.targets.hosts.claim import PATH, Claim, ClaimError, check_claim, hash_key, parse_claim
from infra.targets.hosts.login import dump_login, parse_login
from infra.targets.hosts.receipts import describe_receipts, forget_receipt, save_receipt
from infra.targets.hosts.state import identify_owner, read_logins
from infra.targets.registry import plan_of, target_of
from infra.targets.target import Deployment
from infra.validate.update import affected
from muster.deployments import search_deployment
from tests.infra.targets.hosts.specs import FINGERPRINT, changed, load

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIICGCzKZJdYwtbjzT4gyCnCsXj6lnzSWUyGyROKI7DY7 cluster"
CLAIM = Claim(
    "rack", "mine", "0123", "/home/me/.muster", "9", hash_key(KEY), "gpu-2", "abc", "2026-11-18T09:00:00+00:00"
)
LOGIN = HostLogin("rack1-1", "10.0.0.11", 2222, "ops", "~/.ssh/id", FINGERPRINT, jump=HostLogin("bastion", "1.2.3.4"))


def test_a_claim_survives_the_host() -> None:
    assert parse_claim(CLAIM.render()) == CLAIM
    assert (parse_claim(""), parse_claim("\n")) == (None, None)
    for text in ("{}", "[]", "not JSON", '{"cluster": "rack"}', CLAIM.render()[:-3]):
        with pytest.raises(ClaimError, match="/var/lib/muster/record/claim cannot be read"):
            parse_claim(text)


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"key": ""}, True),  # the state is lost, but it was created here
        ({"home": "4567", "machine": "8"}, True),  # a second operator, who shares the state
        ({"machine": "8", "key": "SHA256:other"}, False),  # a second operator, who has the same paths
        ({"machine": "8", "key": ""}, False),
        ({"home": "4567", "key": "SHA256:other"}, False),
        ({"cluster": "other"}, False),
        ({"stack": "other"}, False),
    ],
)
def test_whose_a_host_is(changes: dict[str, str], same: bool) -> None:
    assert CLAIM.is_of(replace(CLAIM.owner, **changes)) == same


def test_a_claim_without_a_key_is_not_of_those_who_lost_theirs() -> None:
    assert not replace(CLAIM, key="").is_of(replace(CLAIM.owner, key="", machine="8"))


def test_the_fingerprint_of_a_key(tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text(KEY)
    command = ["ssh-keygen", "-lf", str(tmp_path / "key.pub")]
    assert hash_key(KEY) == subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[1]
    assert [hash_key(text) for text in ("", "ssh-ed25519", "ssh-ed25519 A")] == [""] * 3


class Answering:
    """A connection to a host that gives one answer."""

    def __init__(self, answer: Completed) -> None:
        self._answer = answer

    def run(self, _script: str, **_options: Any) -> Completed:
        return self._answer


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (
            Completed(1, "", "sudo: a password is required\n"),
            f"{PATH} cannot be read as root: sudo: a password is required",
        ),
        (Completed(0, "{", ""), f"{PATH} cannot be read"),
    ],
)
def test_a_host_that_does_not_say_whose_it_is_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch, answer: Completed, line: str
) -> None:
    monkeypatch.setattr(adopt, "_open", lambda _login: nullcontext((Answering(answer), "key")))
    with pytest.raises(TransportError) as unknown:
        adopt.read_claim(LOGIN)
    assert unknown.value.line == line
    with pytest.raises(ResourceError, match=f"hosts.machines.rack1-1: {line}"):
        adopt.release_host(LOGIN, "abc")
    monkeypatch.setattr(adopt, "_open", lambda _login: nullcontext((Answering(Completed(0, "", "")), "key")))
    assert adopt.read_claim(LOGIN) is None
    assert adopt.release_host(LOGIN, "abc") == ()


def test_a_host_has_one_cluster_and_one_node() -> None:
    check_claim("rack1-2", CLAIM, replace(CLAIM, id="new"))
    for changes in ({"cluster": "other"}, {"stack": "other"}, {"home": "4567", "key": "SHA256:other"}):
        with pytest.raises(ResourceError) as taken:
            check_claim("rack1-2", CLAIM, replace(CLAIM, **changes))
        assert str(taken.value) == (
            "hosts.machines.rack1-2: belongs to cluster rack (stack mine, MUSTER_HOME /home/me/.muster). "
            "Fix: run `muster teardown --stack mine` there first, or leave the host out."
        )
    with pytest.raises(ResourceError, match="is node gpu-2 of this cluster and cannot become gpu-1 while it runs"):
        check_claim("rack1-2", CLAIM, replace(CLAIM, node="gpu-1"))


def test_a_login_is_stored_without_its_key() -> None:
    assert parse_login(dump_login(LOGIN)) == LOGIN
    assert json.loads(dump_login(LOGIN))["identity_file"] == "~/.ssh/id"


def props(**changes: Any) -> dict[str, Any]:
    given = {"cluster": "rack", "stack": "mine", "host": "rack1-1", "node": "gpu-1", "ssh_public_key": "ssh-ed25519 A"}
    return given | {"login": dump_login(LOGIN), "reachable": True} | changes


@pytest.mark.parametrize(
    ("old", "new", "changes", "replaces"),
    [
        ({}, {}, False, []),
        ({}, {"login": dump_login(replace(LOGIN, user="root"))}, True, []),
        ({}, {"login": dump_login(replace(LOGIN, address="10.0.0.12"))}, True, ["login"]),
        ({}, {"login": dump_login(replace(LOGIN, port=22))}, True, ["login"]),
        ({}, {"ssh_public_key": "ssh-ed25519 B"}, True, []),
        ({"journal": "older"}, {"journal": "newer"}, True, []),
        ({"reachable": False}, {}, True, []),
        ({}, {"node": "gpu-2"}, True, ["node"]),
    ],
)
def test_another_machine_replaces_the_host(
    old: dict[str, Any], new: dict[str, Any], changes: bool, replaces: list[str]
) -> None:
    diff = HostProvider().diff("rack1-1", props(**old), props(**new))
    assert (diff.changes, diff.replaces) == (changes, replaces)


def test_the_inventory_has_what_the_hosts_are() -> None:
    plan = plan_of(load())
    machine = {
        "address": "10.0.0.9",
        "host_key": "ssh-ed25519 K",
        "machine_id": "abc",
        "cpus": 8.0,
        "memory_mb": 9000.0,
    }
    machines = {node.name: machine | {"hostname": f"own-{node.name}"} for node in plan.nodes}
    names = [node.name for node in plan.nodes]
    inside = {"controller": "", "gpu-1": "192.168.7.1", "gpu-2": ""}
    inventory = build_inventory(plan, machines, dict.fromkeys(names, LOGIN), inside, {names[-1]: ("pod1", "leaf1")})
    assert [node.name for node in inventory.nodes] == ["controller", "gpu-1", "gpu-2"]
    first = inventory.compute[0]
    assert first.adopted == Adopted(hostname="own-gpu-1", user="ops")
    assert (first.cpus, first.memory_mb, first.ssh_port, first.ssh_user) == (8, 9000, 2222, "root")
    assert [(n.address, n.login_address) for n in inventory.compute] == [
        ("192.168.7.1", "10.0.0.9"),
        ("10.0.0.9", "10.0.0.9"),
    ]
    assert [node.place for node in inventory.compute] == [(), ("pod1", "leaf1")]
    assert (inventory.mounts, inventory.single_host) == (("/shared",), False)


def test_hosts_are_read_from_the_state(tmp_path: Path) -> None:
    stack = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("mine")
    target = target_of(load())
    assert (read_logins(stack.state), target.deployment_in_state(stack, None)) == ({}, None)
    outputs = {"host": "rack1-1", "cluster": "rack", "ssh_public_key": KEY, "login": dump_login(LOGIN)}
    host = {"type": "pulumi-python:dynamic/muster:Host", "outputs": outputs}
    other = {"type": "pulumi-python:dynamic/muster:SlurmCluster", "outputs": {}}
    stack.state.parent.mkdir(parents=True)
    stack.state.write_text(json.dumps({"checkpoint": {"latest": {"resources": [other, host]}}}))
    assert read_logins(stack.state) == {"rack1-1": LOGIN}
    assert target.deployment_in_state(stack, None) == Deployment("rack", "mine")
    # Without a stack file, an inventory, or with a file that names another target.
    assert search_deployment(stack) == (target, Deployment("rack", "mine"))
    assert CLAIM.is_of(identify_owner("rack", stack))
    assert not CLAIM.is_of(identify_owner("rack", stack, "ssh-ed25519 AAAA"))
    stack.state.write_text("{")
    assert (read_logins(stack.state), target.deployment_in_state(stack, None)) == ({}, None)


def test_the_receipt_of_a_host_names_what_is_left(tmp_path: Path) -> None:
    home = Home.of({"MUSTER_HOME": str(tmp_path)})
    assert describe_receipts(home, "mine", "head") == []
    left = [Restoration("left", "file", f"/etc/{number}", "changed since; muster created it") for number in range(7)]
    save_receipt(home, "mine", "head", [Restoration("restored", "file", "/etc/hosts"), *left])
    lines = describe_receipts(home, "mine", "head")
    assert lines[0] == f"head: 1 restored, 0 removed, 7 left ({tmp_path}/receipts/mine-host-head.json)"
    assert lines[1] == "head: left file /etc/0 (changed since; muster created it)"
    assert (len(lines), lines[-1]) == (7, "head: 2 more are left")
    forget_receipt(home, "mine", "head")
    assert describe_receipts(home, "mine", "head") == []


def test_hosts_leave_from_the_end_of_a_group() -> None:
    old = load()
    shrunk = changed("hosts", "machines", "rack1-2") | {"groups": {"gpu": {"count": 1}}}
    assert list(target_of(old).change_issues(old, load(shrunk))) == []
    assert affected(old, load(shrunk)) == ("gpu-2",)
    moved = changed("hosts", "machines", "rack1-1") | {"groups": {"gpu": {"count": 1}}}
    [issue] = target_of(old).change_issues(old, load(moved))
    assert (issue.code, issue.where) == ("host_moved", "hosts.machines.rack1-2")
    assert issue.message == "host 'rack1-2' is node gpu-2 and cannot become gpu-1 while the cluster runs"


def test_another_address_concerns_only_its_node() -> None:
    old = load()
    assert affected(old, load(changed("hosts", "machines", "rack1-1", "address", value="10.0.0.99"))) == ("gpu-1",)
    assert affected(old, load(changed("hosts", "user", value="ops"))) == ()
