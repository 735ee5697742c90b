"""The pre-flight of hosts against OpenSSH on two machines that boot systemd from the node image."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import pytest

from cluster import names
from cluster.spec.model import Software
from infra.resources import ssh_key
from infra.targets.hosts.preflight import judge, survey
from infra.targets.hosts.preflight.survey import Answer, judge_answers, survey_hosts
from infra.targets.hosts.spec import hosts_section
from infra.targets.local.upgrade import ContainerTransport, MachineArgs, open_machine
from infra.targets.registry import load_spec
from tests.e2e.wrong_clock import shifted_clock

CLUSTER = f"hosts-{os.getpid():x}"
NAMES = ("head", "rack1-1")
# sshd of the image has no keys yet, and no user but root.
PREPARE = """set -e
ssh-keygen -q -A >/dev/null
useradd -m -s /bin/sh ops
for home in /root /home/ops; do
  install -d -m 700 "$home/.ssh"
  echo '{key}' >"$home/.ssh/authorized_keys"
done
chown -R ops: /home/ops/.ssh
mkdir -p /shared
mount -t tmpfs -o size=30g shared /shared
systemctl restart ssh
ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub | cut -d ' ' -f 2
"""
ONLY_LOCAL = {"host_mount_local"}
"""Containers cannot mount a network filesystem; everything else of these machines is as it should be."""


@dataclass(frozen=True)
class Hosts:
    """Two machines, and how a spec describes them."""

    identity: str
    roots: dict[str, ContainerTransport] = field(default_factory=dict)
    machines: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, host: str, script: str) -> str:
        done = self.roots[host].run(script)
        assert done.code == 0, done.err
        return done.out

    def survey(self, user: str = "root", **changes: dict[str, Any]) -> tuple[dict[str, Answer], dict[str, set[str]]]:
        """Return the answers and the codes of the problems, by host; `changes` are fields of hosts."""
        answers, problems = self.judge(user, **changes)
        return answers, {host: set(messages) for host, messages in problems.items()}

    def judge(
        self, user: str = "root", **changes: dict[str, Any]
    ) -> tuple[dict[str, Answer], dict[str, dict[str, str]]]:
        """Return the answers, and the messages of the problems by host and code."""
        hosts = {
            "machines": {name: self.machines[name] | changes.get(name, {}) for name in NAMES},
            "controller": NAMES[0],
            "groups": {"gpu": {"match": ["rack1-*"]}},
            "user": user,
            "identity_file": self.identity,
        }
        spec = load_spec(
            {
                "name": CLUSTER,
                "target": "hosts",
                "groups": {"gpu": {"count": 1}},
                "login": {"enabled": False},
                "storage": {"shared": {"kind": "existing"}},
                "hosts": hosts,
            }
        )
        section = hosts_section(spec)
        assert section is not None
        answers = survey_hosts(spec, section, lambda _: None)
        messages: dict[str, dict[str, str]] = {name: {} for name in NAMES}
        for host, problem in judge_answers(spec, section, answers):
            messages[host][problem.code] = problem.message
        return {answer.host: answer for answer in answers}, messages


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    key = ssh_key.generate("me")
    identity = Path(tmp_path_factory.mktemp("hosts") / "id")
    identity.write_text(key.private)
    started = Hosts(str(identity))
    image = names.image(Software().slurm)
    render = survey.render_script
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        # Nothing here is about this machine, which may be busy and whose disk may be nearly full.
        patch.setattr(survey, "render_script", lambda probe: "PEER_TIMEOUT_S=10\n" + render(probe))
        patch.setattr(judge, "ROOT_FREE_MB", dict.fromkeys(judge.ROOT_FREE_MB, 0))
        for name in NAMES:
            args = MachineArgs(CLUSTER, "hosts", name, image, 1, 512, name=name, network="bridge")
            started.roots[name] = stack.enter_context(open_machine(args))
            fingerprint = started.run(name, PREPARE.format(key=key.public)).strip()
            container = docker.from_env().containers.get(names.container(CLUSTER, name))
            address = container.attrs["NetworkSettings"]["Networks"]["bridge"]["IPAddress"]
            started.machines[name] = {"address": address, "fingerprint": fingerprint}
        yield started


def test_machines_as_they_should_be(hosts: Hosts) -> None:
    answers, codes = hosts.survey()
    assert codes == {"head": ONLY_LOCAL, "rack1-1": ONLY_LOCAL}
    for name in NAMES:
        facts = answers[name].facts
        assert facts is not None
        assert (facts.os, facts.init, facts.hostname, facts.root) == ("debian 13", "systemd", name, True)
        assert set(facts.peers.values()) <= {"open", "closed"}
        assert answers[name].fingerprint == hosts.machines[name]["fingerprint"]


def test_what_is_wrong_is_reported_and_its_fix_works(hosts: Hosts) -> None:
    hosts.run("rack1-1", "rm -f /etc/sudoers.d/ops")
    _, codes = hosts.survey(user="ops")
    assert codes == {"head": {*ONLY_LOCAL, "host_sudo"}, "rack1-1": {*ONLY_LOCAL, "host_sudo"}}
    for name in NAMES:
        hosts.run(name, "echo 'ops ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/ops")
    # A packet filter on the controller, a configuration of Slurm and a server at slurmd's port on the other.
    hosts.run("head", "nft 'add table inet cut; add chain inet cut input { type filter hook input priority 0; }'")
    hosts.run("head", "nft add rule inet cut input tcp dport 6817 drop")
    hosts.run("rack1-1", "systemd-run -q --unit occupy python3 -m http.server 6818")
    hosts.run("rack1-1", "until ss -Hltn sport = :6818 | grep -q .; do sleep 0.1; done")
    hosts.run("rack1-1", "mkdir -p /etc/slurm && echo ClusterName=other >/etc/slurm/slurm.conf")
    answers, codes = hosts.survey(user="ops")
    assert codes == {"head": ONLY_LOCAL, "rack1-1": {*ONLY_LOCAL, "host_blocked", "host_port", "host_slurm"}}
    head = answers["head"].facts
    assert head is not None
    assert set(head.peers.values()) == {"open"}
    hosts.run("head", "nft delete table inet cut")
    hosts.run("rack1-1", "systemctl stop occupy; rm /etc/slurm/slurm.conf; umount /shared")
    _, codes = hosts.survey(user="ops")
    assert codes == {"head": set(), "rack1-1": {"host_mount"}}


def test_another_machine_at_the_address_is_refused(hosts: Hosts) -> None:
    answers, codes = hosts.survey(head={"fingerprint": hosts.machines["rack1-1"]["fingerprint"]})
    assert codes["head"] == {"host_unreachable"}
    assert answers["head"].facts is None
    assert answers["head"].problem is not None
    expected, shown = (hosts.machines[name]["fingerprint"] for name in ("rack1-1", "head"))
    assert f"expected {expected}, got {shown} (ssh-ed25519)" in answers["head"].problem.message


@pytest.mark.fault(20)
def test_a_machine_that_is_down_is_reported_once_and_the_others_are_judged(hosts: Hosts) -> None:
    hosts.run("rack1-1", "systemctl stop ssh")
    try:
        answers, codes = hosts.survey()
    finally:
        hosts.run("rack1-1", "systemctl start ssh")
    assert codes["rack1-1"] == {"host_unreachable"}
    # It is not reported again as a machine that the other one cannot reach.
    assert "host_blocked" not in codes["head"]
    assert answers["head"].facts is not None
    problem = answers["rack1-1"].problem
    assert problem is not None
    assert problem.message.endswith(": connection refused")


@pytest.mark.fault(15)
def test_a_clock_that_is_an_hour_off_is_refused(hosts: Hosts, tmp_path: Path) -> None:
    with shifted_clock(hosts.roots["rack1-1"], tmp_path, 3600):
        _, messages = hosts.judge()
    assert "host_clock" not in messages["head"]
    shown = re.fullmatch(r"its clock is (\d+) s ahead; allowed: 5 s", messages["rack1-1"]["host_clock"])
    assert shown is not None
    # Less by the time that the answer took on its way back, which is long on a busy machine.
    assert 3540 <= int(shown[1]) <= 3600


@pytest.mark.fault(17)
def test_a_machine_that_is_listed_twice_is_recognized(hosts: Hosts) -> None:
    _, codes = hosts.survey(head=hosts.machines["rack1-1"])
    assert "host_twice" in codes["rack1-1"]


@pytest.mark.fault(17)
def test_a_machine_with_the_name_of_another_node_is_refused_with_both_addresses(hosts: Hosts) -> None:
    hosts.run("rack1-1", "hostname controller")
    try:
        _, messages = hosts.judge()
    finally:
        hosts.run("rack1-1", "hostname rack1-1")
    head, other = (hosts.machines[name]["address"] for name in NAMES)
    what = f"{other} has the host name 'controller', which is that of a node: host 'head' at {head}"
    assert messages["rack1-1"]["host_name_taken"] == what
