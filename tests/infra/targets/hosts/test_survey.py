"""The pre-flight over real SSH connections on loopback, and the commands that show it."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko
import pytest
import yaml

from infra.engine.stop import BAD_INPUT, Stop
from infra.home import Home
from infra.resources import ssh_key
from infra.targets.hosts.preflight.survey import Answer, judge_answers, survey_hosts
from infra.targets.mixins import Preflight
from infra.targets.registry import target_of
from muster.commands import screen
from tests.bootstrap.sshd import Sshd
from tests.forked_muster import run_muster
from tests.infra.targets.hosts.specs import FINGERPRINT, changed, load, section_of

ROOT = Path(__file__).parents[4]
ME = ssh_key.generate("me")


def load_key(text: str) -> paramiko.PKey:
    return paramiko.Ed25519Key.from_private_key(io.StringIO(text))


HOST_KEY = load_key(ssh_key.generate("host").private)


@dataclass(frozen=True)
class Servers:
    """Two SSH servers on this machine, and the port of one that does not answer."""

    first: int
    second: int
    dead: int
    identity: str

    def describe(self, *ports: int, **section: Any) -> dict[str, Any]:
        """Return a spec whose controller and compute nodes are at these ports of 127.0.0.1."""
        names = ("head", *(f"rack1-{number}" for number in range(1, len(ports))))
        machines = {
            name: {"address": "127.0.0.1", "port": port, "fingerprint": HOST_KEY.fingerprint}
            for name, port in zip(names, ports, strict=True)
        }
        hosts = {
            "machines": machines,
            "controller": "head",
            "groups": {"gpu": {"match": ["rack1-*"]}},
            "identity_file": self.identity,
        }
        return changed(hosts=hosts | section, groups={"gpu": {"count": len(ports) - 1}})


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    identity = tmp_path / "id"
    identity.write_text(ME.private)
    running = [Sshd(HOST_KEY, load_key(ME.private).get_base64()) for _ in range(2)]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield Servers(running[0].port, running[1].port, unused.getsockname()[1], str(identity))
    for server in running:
        server.close()


def survey(data: dict[str, Any]) -> tuple[list[Answer], dict[str, set[str]]]:
    """Return the answers of the hosts, and the codes of their problems by host."""
    spec = load(data)
    answers = survey_hosts(spec, section_of(spec), lambda _: None)
    codes: dict[str, set[str]] = {answer.host: set() for answer in answers}
    for host, problem in judge_answers(spec, section_of(spec), answers):
        codes[host].add(problem.code)
    return answers, codes


def test_every_host_answers_or_is_reported(servers: Servers) -> None:
    data = servers.describe(servers.first, servers.second, servers.dead)
    answers, codes = survey(data)
    assert [answer.host for answer in answers] == ["head", "rack1-1", "rack1-2"]
    assert [answer.facts is not None for answer in answers] == [True, True, False]
    # Both servers are this machine.
    assert "host_twice" in codes["rack1-1"]
    assert codes["rack1-2"] == {"host_unreachable"}
    assert answers[2].problem is not None
    assert answers[2].problem.message == f"SSH at 127.0.0.1:{servers.dead}: connection refused"
    head = answers[0].facts
    assert head is not None
    assert head.hostname == socket.gethostname()
    # The controller tries the slurmd of both; nothing listens, which is an answer.
    assert {(peer.host, peer.port) for peer in head.peers} == {("rack1-1", 6818), ("rack1-2", 6818)}


def test_a_wrong_host_key_is_reported_and_nothing_is_read(servers: Servers) -> None:
    data = servers.describe(servers.first, servers.second)
    data["hosts"]["machines"]["rack1-1"]["fingerprint"] = FINGERPRINT
    answers, codes = survey(data)
    assert codes["rack1-1"] == {"host_unreachable"}
    assert answers[1].facts is None
    assert answers[1].problem is not None
    assert f"expected {FINGERPRINT}, got {HOST_KEY.fingerprint} (ssh-ed25519)" in answers[1].problem.message


def test_a_key_that_was_trusted_on_first_use_is_shown(servers: Servers) -> None:
    data = servers.describe(servers.first, servers.second, trust_first_use=True)
    del data["hosts"]["machines"]["rack1-1"]["fingerprint"]
    _, codes = survey(data)
    assert "host_key_trusted" in codes["rack1-1"]
    assert "host_key_trusted" not in codes["head"]


def test_many_hosts_are_asked_at_once(servers: Servers) -> None:
    answers, codes = survey(servers.describe(servers.first, *([servers.second] * 1), *([servers.dead] * 30)))
    assert len(answers) == 32
    assert sum("host_unreachable" in host for host in codes.values()) == 30


def write_stack(folder: Path, data: dict[str, Any]) -> None:
    (folder / "Pulumi.rack.yaml").write_text(yaml.safe_dump({"config": {"muster:cluster": data}}))


def muster(stacks: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    folders = {"MUSTER_STACKS": str(stacks), "MUSTER_HOME": str(stacks / "home"), "HOME": str(stacks)}
    return run_muster(*arguments, "--stack", "rack", cwd=ROOT, env={**os.environ, **folders})


def test_check_prints_every_problem_of_every_host_with_its_fix(servers: Servers, tmp_path: Path) -> None:
    write_stack(tmp_path, servers.describe(servers.first, servers.second, servers.dead))
    done = muster(tmp_path, "check")
    assert done.returncode == BAD_INPUT
    assert "Pulumi.rack.yaml is valid, but its hosts are not ready; nothing was changed on them" in done.stderr
    printed = [line.strip() for line in done.stderr.splitlines()]
    assert list_rows(printed, "error    hosts.machines.rack1-2") == [
        [
            f"SSH at 127.0.0.1:{servers.dead}: connection refused",
            "fix: check that the machine runs, its address and port, and that no firewall blocks SSH",
        ]
    ]
    assert [
        "nothing is mounted at /shared",
        "fix: mount the shared filesystem at /shared, with a line in /etc/fstab so that it is there after a restart",
    ] in list_rows(printed, "error    hosts.machines: head, rack1-1")
    report = json.loads(muster(tmp_path, "check", "--json").stdout)
    assert not report["valid"]
    assert {"host_unreachable", "host_mount"} <= {issue["code"] for issue in report["issues"]}


def list_rows(printed: list[str], head: str) -> list[list[str]]:
    """Return message and fix of the issues with this head."""
    return [printed[number + 1 : number + 3] for number, line in enumerate(printed) if line == head]


def test_an_invalid_spec_asks_no_host(servers: Servers, tmp_path: Path) -> None:
    write_stack(tmp_path, servers.describe(servers.first, servers.dead, controller="haed"))
    done = muster(tmp_path, "check")
    assert done.returncode == BAD_INPUT
    assert "Pulumi.rack.yaml is invalid" in done.stderr
    assert "connection refused" not in done.stderr


def test_up_asks_the_hosts_first_and_starts_nothing_if_they_are_not_ready(servers: Servers, tmp_path: Path) -> None:
    write_stack(tmp_path, servers.describe(servers.first, servers.dead))
    done = muster(tmp_path, "up")
    assert done.returncode == BAD_INPUT
    assert "Pulumi.rack.yaml is invalid; nothing was started" in done.stderr
    assert f"SSH at 127.0.0.1:{servers.dead}: connection refused" in done.stderr
    assert "nothing is mounted at /shared" in done.stderr
    assert not (tmp_path / "home/state").exists()


def test_up_refuses_logins_that_bootstrap_cannot_use(servers: Servers, tmp_path: Path) -> None:
    data = servers.describe(servers.first, servers.second, jump="bastion")
    data["hosts"]["jump_hosts"] = {"bastion": {"address": "127.0.0.1", "fingerprint": HOST_KEY.fingerprint}}
    data["hosts"]["machines"]["rack1-1"]["cluster_address"] = "rack1-1.cluster"
    write_stack(tmp_path, data)
    done = muster(tmp_path, "up", "--no-preflight")
    assert done.returncode == BAD_INPUT
    assert "hosts behind a jump host can be checked, but not set up yet" in done.stderr
    assert f"{servers.first}: the host can be checked, but not set up yet: nodes connect to each other" in done.stderr
    assert "'rack1-1.cluster' is a name: the host can be checked, but not set up yet" in done.stderr


def test_a_missing_package_is_explained(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = load(servers.describe(servers.first, servers.second))
    target = target_of(spec)
    assert isinstance(target, Preflight)
    monkeypatch.delitem(sys.modules, "infra.targets.hosts.preflight.survey")
    monkeypatch.setitem(sys.modules, "bootstrap.transport.host_connection", None)
    with pytest.raises(Stop, match="the pre-flight needs the Python package"):
        target.preflight(spec, [], Home.of({}).stack("rack"), screen.get_quiet_console())
