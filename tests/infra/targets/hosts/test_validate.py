"""The rules on a cluster of hosts, each with its exact message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.spec.issue import SpecError, render
from infra.targets.registry import load_spec
from infra.validate import validate
from infra.validate.partial import validate_readable
from tests.infra.targets.hosts.specs import FINGERPRINT, VALID, changed, load

KEY_FIX = (
    "on the machine, run `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` and write for example "
    f"`fingerprint: {FINGERPRINT}`; or name a file with its key: `known_hosts: ~/.ssh/known_hosts`"
)
BASTION = {"bastion": {"address": "gate.example.com", "fingerprint": FINGERPRINT}}

BAD: dict[str, tuple[dict[str, Any], list[tuple[str, str, str, str]]]] = {
    "no section": (
        changed("hosts"),
        [
            (
                "no_hosts",
                "hosts",
                "required for target hosts, but missing",
                "add `hosts:` with `machines`, `controller` and `groups`; docs/hosts.md has an example",
            )
        ],
    ),
    "host listed twice": (
        changed("hosts", "machines", "rack1-2", "address", value="10.0.0.11"),
        [
            (
                "host_twice",
                "hosts.machines.rack1-2.address",
                "'10.0.0.11' is already the address of host 'rack1-1'",
                "remove one of the two, or correct the address",
            )
        ],
    ),
    "host listed twice by its address in the cluster": (
        changed("hosts", "machines", "rack1-2", "cluster_address", value="10.0.0.11"),
        [
            (
                "host_twice",
                "hosts.machines.rack1-2.cluster_address",
                "'10.0.0.11' is already the address of host 'rack1-1'",
                "remove one of the two, or correct the address",
            )
        ],
    ),
    "user of the cluster as whom muster logs in": (
        changed("hosts", "machines", "rack1-1", "user", value="muster"),
        [
            (
                "host_login_user",
                "users.muster",
                "'muster' is the user as whom muster logs in to rack1-1; allowed: another name",
                "rename one of them: the accounts of the cluster's users are added by muster, and removed by teardown",
            )
        ],
    ),
    "controller is not a host": (
        changed("hosts", "controller", value="haed"),
        [
            (
                "no_such_host",
                "hosts.controller",
                "'haed' is not a host; allowed: head, rack1-1, rack1-2",
                "write `controller: head`",
            ),
            (
                "host_unused",
                "hosts.machines.head",
                "has no role, so it is not used: no pattern matches it",
                "remove it, or add it to a group's `match`",
            ),
        ],
    ),
    "login node without a host": (
        changed("login", "enabled", value=True),
        [
            (
                "no_login_host",
                "login.enabled",
                "true needs a host for the login node, but `hosts.login` names none",
                "name a host with `login: HOST` under `hosts:`, or write `login: {enabled: false}`",
            )
        ],
    ),
    "login host without a login node": (
        changed("hosts", "login", value="head"),
        [
            (
                "login_disabled",
                "login.enabled",
                "false leaves 'head', which `hosts.login` names, without a use",
                "write `enabled: true`, or remove `hosts.login`",
            ),
            (
                "host_claimed_twice",
                "hosts.machines.head",
                "has more than one role: hosts.controller and hosts.login claim it; allowed: one",
                "narrow the patterns, or name another host: a host is the controller, the login node or in one group",
            ),
        ],
    ),
    "hosts of a group that does not exist": (
        changed("hosts", "groups", value={"gpus": {"match": ["rack1-*"]}}),
        [
            (
                "no_such_group",
                "hosts.groups.gpus",
                "'gpus' is not a node group; allowed: gpu",
                "rename it to `gpu`",
            ),
            (
                "no_such_group",
                "hosts.groups",
                "node group 'gpu' has no hosts",
                "add `gpu: {match: [PATTERN]}` under `hosts.groups`",
            ),
        ],
    ),
    "pattern that matches nothing": (
        changed("hosts", "groups", "gpu", "match", value=["rack1-*", "rack2-*"]),
        [
            (
                "empty_pattern",
                "hosts.groups.gpu.match[1]",
                "'rack2-*' matches none of the hosts head, rack1-1, rack1-2",
                "write `rack1-2`, or a pattern such as `rack1-*`",
            )
        ],
    ),
    "pattern that matches too much": (
        changed("hosts", "groups", "gpu", "match", value=["*"]),
        [
            (
                "host_count",
                "groups.gpu.count",
                "2 nodes, but 3 matching hosts: head, rack1-1, rack1-2",
                "write `count: 3`, or change `hosts.groups.gpu.match`",
            ),
            (
                "host_claimed_twice",
                "hosts.machines.head",
                "has more than one role: hosts.controller and hosts.groups.gpu claim it; allowed: one",
                "narrow the patterns, or name another host: a host is the controller, the login node or in one group",
            ),
        ],
    ),
    "two groups claim a host": (
        changed(
            *("hosts", "groups"),
            value={"cpu": {"match": ["rack1-1"]}, "gpu": {"match": ["rack1-*"]}},
            groups={"cpu": {"count": 1}, "gpu": {"count": 2}},
        ),
        [
            (
                "host_claimed_twice",
                "hosts.machines.rack1-1",
                "has more than one role: hosts.groups.cpu and hosts.groups.gpu claim it; allowed: one",
                "narrow the patterns, or name another host: a host is the controller, the login node or in one group",
            )
        ],
    ),
    "missing fingerprint": (
        changed("hosts", "machines", "rack1-2", "fingerprint"),
        [
            (
                "no_fingerprint",
                "hosts.machines.rack1-2.fingerprint",
                "required, but missing: nothing says which host key is the right one",
                KEY_FIX,
            )
        ],
    ),
    "missing fingerprints": (
        changed("hosts", "machines", value={name: {"address": f"{name}.lan"} for name in VALID["hosts"]["machines"]}),
        [
            (
                "no_fingerprint",
                "hosts.machines",
                "head, rack1-1, rack1-2 have no `fingerprint`: nothing says which host key is the right one",
                KEY_FIX,
            )
        ],
    ),
    "missing fingerprint of a jump host": (
        changed("hosts", "jump_hosts", value={"bastion": {"address": "gate.example.com"}}),
        [
            (
                "no_fingerprint",
                "hosts.jump_hosts.bastion.fingerprint",
                "required, but missing: nothing says which host key is the right one",
                KEY_FIX,
            )
        ],
    ),
    "trust on first use": (
        changed("hosts", "trust_first_use", value=True),
        [
            (
                "trust_first_use",
                "hosts.trust_first_use",
                "true: somebody between here and a machine can pose as it and get root on the others",
                "write the fingerprints that `muster check` prints, then remove it",
            )
        ],
    ),
    "jump host that is not described": (
        changed("hosts", "jump", value="gate"),
        [
            (
                "no_such_jump_host",
                "hosts.jump",
                "'gate' is not a jump host; allowed: none",
                "add `gate: {address: ...}` under `hosts.jump_hosts`",
            )
        ],
    ),
    "jump hosts in a circle": (
        changed(
            *("hosts", "jump_hosts"),
            value={
                "a": {"address": "a.lan", "fingerprint": FINGERPRINT, "jump": "b"},
                "b": {"address": "b.lan", "fingerprint": FINGERPRINT, "jump": "a"},
            },
        ),
        [("jump_cycle", "hosts.jump_hosts.a.jump", "a -> b -> a never ends", "remove one `jump` of the circle")],
    ),
    "settings of a network that is not ours": (
        changed(network={"cidr": "10.88.7.0/24", "egress": False}, login={"enabled": False, "ssh_port": 2222}),
        [
            (
                "host_network",
                "login.ssh_port",
                "2222 cannot be published: the login node has its own address",
                "remove it, and connect to the address of the host",
            ),
            (
                "host_network",
                "network.cidr",
                "'10.88.7.0/24' has no effect: hosts have the addresses under `hosts.machines`",
                "remove it",
            ),
            (
                "host_network",
                "network.egress",
                "false has no effect: muster does not change the network of machines that exist",
                "remove it, and block the traffic in your network",
            ),
        ],
    ),
}


def test_valid_spec_has_no_issue() -> None:
    assert validate(load()) == []


@pytest.mark.parametrize("title", BAD)
def test_rule(title: str) -> None:
    data, expected = BAD[title]
    issues = validate(load(data))
    assert [(issue.code, issue.where, issue.message, issue.fix) for issue in issues] == expected


@pytest.mark.parametrize(
    ("code", "level"),
    [("host_unused", "warning"), ("trust_first_use", "warning"), ("host_twice", "error"), ("no_fingerprint", "error")],
)
def test_only_choices_are_warnings(code: str, level: str) -> None:
    every = [issue for data, _ in BAD.values() for issue in validate(load(data))]
    assert {issue.level for issue in every if issue.code == code} == {level}


def test_a_known_hosts_file_replaces_fingerprints() -> None:
    hosts = VALID["hosts"] | {
        "machines": {name: {"address": f"{name}.lan"} for name in VALID["hosts"]["machines"]},
        "known_hosts": "~/.ssh/known_hosts",
    }
    assert validate(load(changed(hosts=hosts))) == []


def test_the_same_address_behind_two_jump_hosts_is_two_machines() -> None:
    hosts = VALID["hosts"] | {"jump_hosts": BASTION}
    machine = {"address": "10.0.0.11", "cluster_address": "10.9.0.12", "fingerprint": FINGERPRINT, "jump": "bastion"}
    hosts["machines"] = hosts["machines"] | {"rack1-2": machine}
    assert validate(load(changed(hosts=hosts))) == []


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("machines", "head", "address"),
            "-oProxyCommand=x",
            '"-oProxyCommand=x" is not an IPv4 address or a DNS name',
        ),
        (
            ("machines", "head", "fingerprint"),
            "MD5:00:11",
            '"MD5:00:11" is not a fingerprint as `ssh-keygen -l` prints it, SHA256: and 43 characters',
        ),
        (("machines", "head", "port"), 70000, "70000 is not a whole number from 1 to 65535"),
        (
            ("machines", "head", "user"),
            "-l root",
            "\"-l root\" is not a user name (lower-case letters, digits, '_', '.' and '-')",
        ),
        (("machines", "head", "adress"), "10.0.0.1", "unknown key; allowed: address, cluster_address, fingerprint"),
        (("machines",), {}, "an empty mapping is not a mapping from names to hosts with at least one entry"),
        (("groups", "gpu", "match"), [], "an empty list is not a list of text"),
        (("controller",), None, "required, but missing; expected a name"),
    ],
)
def test_wrong_value(path: tuple[str, ...], value: Any, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        load_spec(changed("hosts", *path, value=value))
    assert message in render(refused.value.issues)


def test_a_broken_section_causes_no_false_issue_in_others() -> None:
    data = changed("login", "enabled", value="maybe")
    with pytest.raises(SpecError) as refused:
        load_spec(data)
    assert validate_readable(data, refused.value.issues) == []
    data = changed("groups", "gpu", "count", value="two")
    with pytest.raises(SpecError) as refused:
        load_spec(data)
    assert validate_readable(data, refused.value.issues) == []


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"groups": {"gpu": {"count": 2, "size": {"cpus": 2}}}},
            "target 'hosts' has no `size`; targets that have it: local",
        ),
        (
            {"storage": {"shared": {"kind": "volume"}}},
            "target 'hosts' has no storage 'volume'; targets that have it: azure, local, nebius",
        ),
        ({"groups": {"gpu": {"min": 0, "max": 2}}}, "target 'hosts' cannot scale between min and max"),
        ({"groups": {"gpu": {"count": 2, "fabric": "efa"}}}, "target 'hosts' has no fabric 'efa'"),
    ],
)
def test_what_the_target_lacks_is_refused(section: dict[str, Any], message: str) -> None:
    assert message in render(validate(load(changed(**section))))


def test_the_example_of_the_page_is_valid() -> None:
    page = (Path(__file__).parents[4] / "docs" / "hosts.md").read_text()
    example = page.partition("```yaml\n")[2].partition("```")[0]
    assert validate(load_spec(yaml.safe_load(example)["config"]["muster:cluster"])) == []
