"""IMEX in the prolog of a job: which nodes it connects, how a failure is reported, and that the node is not lost."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from slurm.control.nodes import parse_nodes
from slurm.health import imex
from slurm.health.check import Expected, judge_answer
from slurm.health.drain import GOOD_ROUNDS
from slurm.health.registry import run_scripts
from tests.slurm.test_health import StubbedNode

NODES = ("gb-a-1", "gb-a-2", "gb-a-3")
EXPECTED = json.dumps({"disabled": ["disk", "clock"], "ultraserver": NODES})
# As printed in docs.aws.amazon.com/pcs/latest/userguide/capacity-blocks-nvidia-imex.html, with fewer nodes.
LEGEND = "Connectivity Table Legend:\nI - Invalid - Node wasn't reachable, no connection status available\n"
TABLE = "\n Nodes From\\To  0   1\n       0        C   C\n       1        C   C\nDomain State: {}\n"
# For commands that end, and for those that must have begun before they are given up: also on a busy machine.
LONG_S, SHORT_S = 60.0, 3.0


def status(*states: str, domain: str = "UP") -> str:
    lines = [
        f"Node #{number}   - 10.0.0.{number + 1}    - {state:20} - Version: 595.91"
        for number, state in enumerate(states)
    ]
    return LEGEND + "\n11/17/2026 06:08:10.580\nNodes:\n" + "\n".join(lines) + "\n" + TABLE.format(domain)


def shown(*names: str) -> str:
    """Return the nodes as scontrol prints them; each has the number in its name as the last part of its address."""
    addresses = {name: f"10.0.0.{name.rpartition('-')[2]}" for name in names}
    return "".join(f"NodeName={name} NodeAddr={address} State=ALLOCATED\n" for name, address in addresses.items())


class UltraserverNode:
    """A node with stubs of Slurm and systemd, on which the real prolog and epilog run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stubs = StubbedNode.create(folder)
        self.root = folder / "root"
        for path in ("etc/nvidia-imex", "dev/nvidia-caps-imex-channels", "proc"):
            (self.root / path).mkdir(parents=True)
        (self.root / "etc/nvidia-imex/config.cfg").write_text("SERVER_PORT=50000\nIMEX_CMD_ENABLED=0\nLOG_LEVEL=4\n")
        (self.root / "dev/nvidia-caps-imex-channels/channel0").touch()
        (folder / "shown").write_text(shown("gb-a-1", "gb-a-2"))
        state = folder / "node"
        self.stubs.write_tool(
            "scontrol",
            f'case "$*" in "show node"*) echo "$4" >>{folder}/queried; cat {folder}/shown;; '
            f'*state=drain*) printf "gb-a-1|drained|%s" "${{4#reason=}}" >{state};; '
            f'*state=resume*) printf "gb-a-1|idle|none" >{state};; esac',
        )
        self.write_systemctl()
        self.set_status(status("READY", "READY"))

    def write_systemctl(self, start: str = ":", is_failed: str = "inactive") -> None:
        self.stubs.write_tool(
            "systemctl",
            f'echo "$1" >>{self.folder}/calls; case "$1" in start) {start};; is-failed) echo {is_failed};; esac',
        )

    def set_status(self, text: str) -> None:
        (self.folder / "status").write_text(text)
        self.stubs.write_tool("nvidia-imex-ctl", f"cat {self.folder}/status")

    @property
    def channel_mode(self) -> int:
        return stat.S_IMODE((self.root / "dev/nvidia-caps-imex-channels/channel0").stat().st_mode)

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().split()

    def read(self, path: str) -> str:
        return (self.root / path).read_text()

    def run(
        self, kind: str, expected: str = EXPECTED, limit_s: float = LONG_S, command_s: float = LONG_S
    ) -> subprocess.CompletedProcess[str]:
        (self.folder / "expected.json").write_text(expected)
        program = (
            "import sys; from pathlib import Path; from slurm.health import __main__ as health, imex_domain; "
            f"health.EXPECTED = Path({str(self.folder / 'expected.json')!r}); "
            f"health.STATE = Path({str(self.folder)!r}); health.GATE = Path({str(self.folder / 'gate')!r}); "
            f"imex_domain.ROOT = Path({str(self.root)!r}); imex_domain.ROOT_UID = {os.getuid()}; "
            f"imex_domain.start_domain.__defaults__ = ({limit_s},); "
            f"imex_domain.STOP_S = imex_domain.COMMAND_S = {command_s}; "
            "sys.exit(health.main(sys.argv[1:]))"
        )
        environment = {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "SLURMD_NODENAME": "gb-a-1",
            "SLURM_JOB_NODELIST": "gb-a-[1-2]",
            "SLURM_JOB_UID": str(os.getuid()),
        }
        command = [sys.executable, "-S", "-c", program, kind]
        return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path.cwd())


@pytest.fixture
def node(tmp_path: Path) -> UltraserverNode:
    return UltraserverNode(tmp_path)


def test_the_prolog_connects_the_nodes_of_the_job(node: UltraserverNode) -> None:
    done = node.run("prolog")
    assert (done.returncode, done.stderr) == (0, "")
    assert node.read("etc/nvidia-imex/nodes_config.cfg") == "10.0.0.1\n10.0.0.2\n"
    assert node.read("etc/nvidia-imex/config.cfg") == (
        "SERVER_PORT=50000\nLOG_LEVEL=4\nIMEX_CMD_ENABLED=1\nIMEX_CMD_PORT=50005\n"
    )
    assert (node.folder / "queried").read_text() == "gb-a-[1-2]\n"
    assert node.calls == ["stop", "reset-failed", "start"]
    assert (node.root / "run/muster/imex").exists()
    assert node.channel_mode == 0o600, "other users cannot map the job's memory"
    assert node.stubs.state == "gpu-1|idle|none"


def test_nodes_of_other_ultraservers_are_left_out() -> None:
    """NVLink ends at the UltraServer; a service that lists nodes beyond it would wait for connections in vain."""
    nodes = parse_nodes(shown("gb-a-1", "gb-a-2") + shown("gb-b-1"))
    assert imex.select_addresses(nodes, NODES) == {"gb-a-1": "10.0.0.1", "gb-a-2": "10.0.0.2"}


def test_the_epilog_stops_the_service(node: UltraserverNode) -> None:
    node.run("prolog")
    assert node.run("epilog").returncode == 0
    assert node.calls == ["stop", "reset-failed", "start", "stop", "reset-failed"]
    assert not (node.root / "run/muster/imex").exists()


def test_the_epilog_never_drains_the_node(node: UltraserverNode) -> None:
    node.stubs.write_tool("systemctl", "sleep 600")
    done = node.run("epilog", command_s=2.0)
    assert done.returncode == 0
    assert "timed out after 2.0 seconds" in done.stderr
    assert node.stubs.state == "gpu-1|idle|none"
    for expected in ("", "{"):
        done = node.run("epilog", expected=expected)
        assert done.returncode == 0
        assert done.stderr.startswith("health: epilog: ")


def test_a_service_that_does_not_start_drains_the_node_with_the_cause_until_it_is_repaired(
    node: UltraserverNode,
) -> None:
    """While systemd shows the service as failed, the node stays out of service; the sweep then replaces its machine."""
    cause = "Job for nvidia-imex.service failed because the control process exited with error code."
    node.write_systemctl(f'echo "{cause}" >&2; exit 1', is_failed="failed")
    done = node.run("prolog")
    assert (done.returncode, done.stderr) == (1, f"health: imex: nvidia-imex did not start: {cause}\n")
    assert node.stubs.state == f"gb-a-1|drained|health: imex: nvidia-imex did not start: {cause}"
    assert node.calls[-2:] == ["start", "stop"], "a reset would hide the failure from the next rounds"
    assert not (node.root / "run/muster/imex").exists()
    for _ in range(GOOD_ROUNDS):
        node.run("interval")
    assert "drained" in node.stubs.state
    node.write_systemctl()
    for _ in range(GOOD_ROUNDS):
        node.run("interval")
    assert node.stubs.state == "gb-a-1|idle|none"


@pytest.mark.nightly
def test_a_node_that_waited_for_another_in_vain_returns_to_service(node: UltraserverNode) -> None:
    node.set_status(status("READY", "UNAVAILABLE", domain="DOWN"))
    done = node.run("prolog", limit_s=SHORT_S)
    reason = "health: imex: the domain is not up: gb-a-2 (10.0.0.2) UNAVAILABLE"
    assert (done.returncode, done.stderr) == (1, f"{reason}\n")
    assert node.stubs.state == f"gb-a-1|drained|{reason}"
    assert node.calls[-2:] == ["start", "stop"]
    for _ in range(GOOD_ROUNDS):
        node.run("interval")
    assert node.stubs.state == "gb-a-1|idle|none"


def test_the_prolog_waits_until_the_domain_is_up(node: UltraserverNode) -> None:
    ready = node.folder / "ready"
    ready.write_text(status("READY", "READY"))
    node.set_status(status("READY", "INITIALIZING", domain="DEGRADED"))
    tool = f"cat {node.folder}/status; cp {ready} {node.folder}/status"
    node.stubs.write_tool("nvidia-imex-ctl", tool)
    assert node.run("prolog").returncode == 0


@pytest.mark.nightly
def test_a_status_query_that_hangs_is_repeated_until_the_limit(node: UltraserverNode) -> None:
    hang_once = f"[ -e {node.folder}/hung ] || {{ touch {node.folder}/hung; sleep 600; }}; cat {node.folder}/status"
    node.stubs.write_tool("nvidia-imex-ctl", hang_once)
    assert node.run("prolog", command_s=SHORT_S).stderr == ""
    node.stubs.write_tool("nvidia-imex-ctl", "sleep 600")
    done = node.run("prolog", limit_s=SHORT_S, command_s=SHORT_S)
    problem = "the domain is not up: gb-a-1 (10.0.0.1) no answer, gb-a-2 (10.0.0.2) no answer"
    assert (done.returncode, done.stderr) == (1, f"health: imex: {problem}\n")
    assert node.calls[-2:] == ["start", "stop"]
    assert not (node.root / "run/muster/imex").exists()


def test_a_service_that_hangs_while_starting_is_reported_and_stopped(node: UltraserverNode) -> None:
    node.write_systemctl("sleep 600")
    done = node.run("prolog", limit_s=SHORT_S)
    assert done.stderr == f"health: imex: nvidia-imex did not start within {SHORT_S:g} s\n"
    assert node.calls[-2:] == ["start", "stop"]


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("etc/nvidia-imex/config.cfg", "nvidia-imex is not installed: ROOT/etc/nvidia-imex/config.cfg does not exist"),
        (
            "dev/nvidia-caps-imex-channels/channel0",
            "the driver has no IMEX channels: /proc/devices does not list nvidia-caps-imex-channels",
        ),
    ],
)
def test_missing_software_is_reported(node: UltraserverNode, path: str, cause: str) -> None:
    (node.root / path).unlink()
    (node.root / "proc/devices").write_text("Character devices:\n195 nvidia\n")
    done = node.run("prolog")
    assert done.stderr == f"health: imex: {cause.replace('ROOT', str(node.root))}\n"
    assert "start" not in node.calls


def test_a_job_without_known_addresses_is_reported(node: UltraserverNode) -> None:
    (node.folder / "shown").write_text("")
    assert "slurmctld does not know the addresses of gb-a-[1-2]" in node.run("prolog").stderr


@pytest.mark.parametrize(
    ("states", "domain", "text"),
    [
        (("READY", "UNAVAILABLE"), "DOWN", "gb-a-2 (10.0.0.2) UNAVAILABLE, gb-a-3 (10.0.0.3) no answer"),
        (("READY", "READY", "READY"), "DEGRADED", "all nodes are READY, but the domain is DEGRADED"),
    ],
)
def test_nodes_that_are_not_connected_are_named(states: tuple[str, ...], domain: str, text: str) -> None:
    addresses = {name: f"10.0.0.{number + 1}" for number, name in enumerate(NODES)}
    assert imex.describe_missing(imex.parse_status(status(*states, domain=domain)), addresses) == text


def test_the_major_number_of_channels_is_read_from_proc_devices() -> None:
    assert imex.find_major("Character devices:\n  1 mem\n234 nvidia-caps-imex-channels\n\nBlock devices:\n") == 234
    assert imex.find_major("Character devices:\n195 nvidia-caps\n") is None


def test_only_nodes_of_ultraservers_are_checked(node: UltraserverNode) -> None:
    assert not imex.CHECK.applies(Expected())
    expected = Expected(ultraserver=NODES)
    assert imex.CHECK.applies(expected)
    (answer,) = run_scripts([(imex.CHECK.command(expected), 10.0)])
    (problem,) = judge_answer(imex.CHECK, answer, expected)
    assert str(problem) == "imex: nvidia-imex is not installed"
