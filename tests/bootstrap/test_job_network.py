"""Which rules keep users' programs apart, and on which nodes."""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from bootstrap.facts.model import Facts
from bootstrap.steps import job_network
from cluster.inventory import Adopted, Node
from tests.bootstrap.clusters import desired, done_all, node

USERS = {"alice": {"uid": 2001}, "carol": {"uid": 60000}}
TARGET = desired(users=USERS)
CONTROLLER, LOGIN, COMPUTE, _ = TARGET.inventory.nodes


def list_rules(member: Node, chain: str) -> list[str]:
    text = job_network.render_script(member, TARGET)
    body = re.search(rf"^  chain {chain} {{\n(.*?)^  }}", text, re.MULTILINE | re.DOTALL)
    return [] if body is None else [line.strip() for line in body[1].splitlines() if "#" not in line and line.strip()]


@pytest.mark.parametrize("member", [CONTROLLER, LOGIN, COMPUTE], ids=lambda member: member.role)
def test_every_node_says_who_opens_a_connection(member: Node) -> None:
    assert "tcp flags & (fin | syn | rst | ack) == syn jump sign" in list_rules(member, "out")
    signed = list_rules(member, "sign")
    assert signed[:2] == ["ip id set 0", "ip6 flowlabel set 0"], "nobody's, unless a rule below says whose"
    assert signed[3:7] == [
        "meta skuid 2001 ip id set 2001",
        "meta skuid 2001 ip6 flowlabel set 2001",
        "meta skuid 60000 ip id set 60000",
        "meta skuid 60000 ip6 flowlabel set 60000",
    ]
    # A user's connection from a low port, which containers allow, is not taken for one of the kernel.
    assert signed[7:] == ["meta skuid >= 0 return", "tcp sport < 1024 goto sign_system"]


def test_only_compute_nodes_check_who_connects() -> None:
    assert list_rules(COMPUTE, "in")[-1].endswith("== syn jump note")
    assert list_rules(COMPUTE, "out")[2].endswith("== (syn | ack) jump answer")
    for member in (CONTROLLER, LOGIN):
        assert list_rules(member, "in") == []
        assert not any("answer" in rule for rule in list_rules(member, "out"))


def test_a_user_s_program_answers_the_same_user_and_the_system_only() -> None:
    answers = list_rules(COMPUTE, "answer")
    owners = {tuple(re.findall(r"meta skuid (\d+)|@from6?_(\d+) return", rule)) for rule in answers[:6]}
    assert owners == {(("", "1"),), (("2001", ""), ("", "2001")), (("60000", ""), ("", "60000"))}
    assert answers[6:8] == ["meta skuid @users jump refuse", "meta skuid != @users return"]
    assert answers[-1] == "drop"


def test_an_earlier_user_of_a_connection_is_forgotten_before_the_new_one_is_noted() -> None:
    notes = [re.sub(r" \{.*", "", rule) for rule in list_rules(COMPUTE, "note") if "@from" in rule]
    names = [f"@from{family}_{number}" for number in (1, 2001, 60000) for family in ("", "6")]
    assert notes[:6] == [f"delete {name}" for name in names]
    assert [note.split()[-1] for note in notes[6:]] == names
    assert notes[8:10] == ["ip id 2001 add @from_2001", "ip6 flowlabel 2001 add @from6_2001"]


def test_the_script_is_complete() -> None:
    for member in TARGET.inventory.nodes:
        text = job_network.render_script(member, TARGET)
        assert re.findall(r"@[A-Z_]+@", text) == []
        assert "elements = { 2001, 60000 }" in text
        sets = set(re.findall(r"^  set (\w+) ", text, re.MULTILINE))
        assert set(re.findall(r"@(\w+)", text)) <= sets


def test_datagrams_reach_no_address_that_a_node_may_have() -> None:
    public = node("far", "compute", 30).model_copy(update={"address": "198.51.100.7"})
    named = node("named", "compute", 31).model_copy(update={"address": "named.example"})
    networks = job_network.list_private(each.address for each in desired(public, named).inventory.nodes)
    inside = ["10.1.0.21", "100.64.3.4", "172.31.9.9", "192.168.1.1", "198.51.100.7"]
    assert all(any(IPv4Address(address) in network for network in networks) for address in inside)
    assert IPv4Network("198.51.100.7") in networks
    assert not any(IPv4Address("198.51.100.8") in network for network in networks)


def test_the_rules_are_loaded_again_when_users_change_or_somebody_removed_them() -> None:
    facts = done_all(TARGET)["gpu-1"]
    load = "load the rules for connections between users"
    assert job_network.plan_job_network(facts, COMPUTE, TARGET) == []
    gone = job_network.plan_job_network(replace(facts, job_network=""), COMPUTE, TARGET)
    assert [action.title for action in gone] == [load]
    changed = job_network.plan_job_network(facts, COMPUTE, desired(users=USERS | {"dave": {"uid": 2004}}))
    assert [action.title for action in changed] == ["write /etc/muster/job-network", load]


def test_slurmd_does_not_start_without_the_rules() -> None:
    drop_in = "write /etc/systemd/system/slurmd.service.d/muster-job-network.conf"
    written = {a.title: a.data.decode() for a in job_network.plan_job_network(Facts(), COMPUTE, TARGET)}
    assert written[drop_in] == "[Service]\nExecStartPre=/etc/muster/job-network\n"
    assert drop_in not in {a.title for a in job_network.plan_job_network(Facts(), LOGIN, TARGET)}
    (reload,) = (
        action.script
        for action in job_network.plan_job_network(Facts(loaded=frozenset({"slurmd"})), COMPUTE, TARGET)
        if action.title == "enable muster-job-network"
    )
    assert reload.endswith("systemctl daemon-reload")


@pytest.mark.parametrize("member", [CONTROLLER, LOGIN, COMPUTE], ids=lambda node: node.role)
def test_users_log_in_only_after_a_boot_that_has_loaded_the_rules(member: Node) -> None:
    todo = {action.title: action for action in job_network.plan_job_network(Facts(), member, TARGET)}
    drop_in = todo["write /etc/systemd/system/systemd-user-sessions.service.d/muster-job-network.conf"]
    assert drop_in.data.decode() == "[Unit]\nRequires=muster-job-network.service\n"
    unit = todo["write /etc/systemd/system/muster-job-network.service"].data.decode()
    assert "systemd-user-sessions.service" in unit.partition("Before=")[2].splitlines()[0]
    load, then = todo["load the rules for connections between users"].script.splitlines()
    assert load == "/etc/muster/job-network"
    assert then == "if [ -e /run/nologin ]; then systemctl start --no-block systemd-user-sessions.service; fi"


@pytest.mark.parametrize(
    "changes", [{"ssh_user": "ubuntu"}, {"adopted": Adopted(hostname="front", user="ops")}], ids=["muster", "owner"]
)
def test_a_machine_that_an_ordinary_user_maintains_can_always_be_repaired(changes: dict[str, object]) -> None:
    facts = done_all(TARGET)["login"]
    assert job_network.LOGIN_DROP_IN in facts.files
    reached_by_sudo = LOGIN.model_copy(update=changes)
    titles = [action.title for action in job_network.plan_job_network(facts, reached_by_sudo, TARGET)]
    assert titles[0] == f"remove {job_network.LOGIN_DROP_IN}"
    written = {action.title for action in job_network.plan_job_network(Facts(), reached_by_sudo, TARGET)}
    assert f"write {job_network.LOGIN_DROP_IN}" not in written


def test_a_kernel_without_nftables_is_named() -> None:
    assert job_network.skip(Facts(job_network="closed"), COMPUTE, TARGET) == ""
    assert job_network.skip(Facts(), COMPUTE, TARGET) == ""
    reason = job_network.skip(Facts(job_network="open: Protocol not supported"), COMPUTE, TARGET)
    assert reason == ("users' jobs can connect to each other: the kernel lacks nftables (open: Protocol not supported)")


def test_the_spec_can_open_the_network_and_close_it_again() -> None:
    open_to_all = desired(users=USERS, slurm={"connections": "all"})
    opened = job_network.plan_job_network(done_all(TARGET)["gpu-1"], COMPUTE, open_to_all)
    assert [action.title for action in opened] == ["write /etc/muster/job-network", opened[-1].title]
    assert b"nft delete table inet muster_jobs" in opened[0].data
    facts = replace(done_all(open_to_all)["gpu-1"], job_network="open: slurm.connections is all")
    assert facts.job_network.encode() in opened[0].data
    assert job_network.skip(facts, COMPUTE, TARGET) == ""
    assert job_network.plan_job_network(facts, COMPUTE, open_to_all) == []
    closed = job_network.plan_job_network(facts, COMPUTE, TARGET)
    assert [action.title for action in closed] == [action.title for action in opened]
