"""Which host becomes which node, and how each is logged in to."""

from __future__ import annotations

from bootstrap.transport.host_login import HostLogin
from infra.targets.hosts.assign import assign_hosts
from infra.targets.hosts.login import resolve_login
from infra.targets.registry import plan_of
from tests.infra.targets.hosts.specs import FINGERPRINT, VALID, changed, load, section_of


def test_nodes_are_numbered_in_the_natural_order_of_hosts() -> None:
    machines = {name: {"address": f"{name}.lan"} for name in ("rack1-10", "rack1-9", "front", "head", "big")}
    spec = load(
        changed(
            hosts={
                "machines": machines,
                "controller": "head",
                "login": "front",
                "groups": {"gpu": {"match": ["rack1-*"]}, "big": {"match": ["big"]}},
                "known_hosts": "known_hosts",
            },
            groups={"gpu": {"count": 2, "gpus": {"count": 8, "kind": "real"}}, "big": {"count": 1}},
            login={"enabled": True},
        )
    )
    assert [(entry.host, entry.node) for entry in assign_hosts(section_of(spec))] == [
        ("head", "controller"),
        ("front", "login"),
        ("big", "big-1"),
        ("rack1-9", "gpu-1"),
        ("rack1-10", "gpu-2"),
    ]
    planned = {node.name: (node.role, node.group, node.gpus.count) for node in plan_of(spec).nodes}
    assert planned == {
        "controller": ("controller", None, 0),
        "login": ("login", None, 0),
        "big-1": ("compute", "big", 0),
        "gpu-1": ("compute", "gpu", 8),
        "gpu-2": ("compute", "gpu", 8),
    }


def test_a_host_has_the_settings_of_the_section_unless_it_has_its_own() -> None:
    hosts = VALID["hosts"] | {
        "user": "ubuntu",
        "identity_file": "~/.ssh/cluster",
        "jump": "outer",
        "known_hosts": "known_hosts",
        "jump_hosts": {
            "outer": {"address": "outer.example.com", "user": "me", "fingerprint": FINGERPRINT},
            "inner": {"address": "inner.lan", "jump": "outer", "port": 2200},
        },
        "machines": {
            "head": {"address": "10.0.0.10"},
            "rack1-1": {"address": "10.0.0.11", "user": "root", "port": 2222, "identity_file": "own", "jump": "inner"},
            "rack1-2": {"address": "10.0.0.12"},
        },
    }
    section = section_of(load(changed(hosts=hosts)))
    outer = HostLogin("outer", "outer.example.com", 22, "me", "~/.ssh/cluster", FINGERPRINT, known_hosts="known_hosts")
    inner = HostLogin("inner", "inner.lan", 2200, "ubuntu", "~/.ssh/cluster", known_hosts="known_hosts", jump=outer)
    assert resolve_login(section, "head") == HostLogin(
        "head", "10.0.0.10", 22, "ubuntu", "~/.ssh/cluster", known_hosts="known_hosts", jump=outer
    )
    assert resolve_login(section, "rack1-1") == HostLogin(
        "rack1-1", "10.0.0.11", 2222, "root", "own", known_hosts="known_hosts", jump=inner
    )
