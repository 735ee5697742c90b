"""The facts script runs here as on any host; its output is complete, and valid whatever the machine says."""

from __future__ import annotations

import os
import platform
import pwd
import socket
import subprocess
import time
from pathlib import Path

import pytest

from infra.targets.hosts.preflight.facts import (
    FactsError,
    MachineFacts,
    Mount,
    Peer,
    Probe,
    parse_facts,
    render_script,
)
from slurm.rdma.sysfs import RdmaFacts, RdmaPort

RECORDED = """\
Welcome to this machine!
["clock", "1800000000.5"]
["os", "ubuntu", "24.04", "Ubuntu 24.04.3 LTS"]
["arch", "x86_64"]
["init", "systemd"]
["hostname", "rack1-1"]
["machine", "3a790b17", "net:[4026531833]"]
["cpus", "128"]
["memory_mb", "2063859"]
["python", "3.12.3"]
["disk", "/", "800000"]
["root", "no", "sudo: a password is required"]
["active", "munge"]
["file", "/etc/slurm/slurm.conf"]
["slurm", "23.11.4"]
["no_include"]
["filter", "iptables"]
["listens", "0016"]
["listens", "1AA2"]
["account", "2000", "alice", "2000", "Alice"]
["account", "alice", "alice", "2000", "Alice"]
["mount", "/shared", "nas:/export", "nfs4", "ro"]
["disk", "/shared", "90000000"]
["hangs", "/data"]
["gpu", "0000:19:00.0"]
["gpu_model", "NVIDIA H100 80GB HBM3"]
["driver", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05"]
["module", "nouveau"]
["rdma", "mlx5_0/ports/1/state", "4: ACTIVE"]
["rdma", "mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)"]
["rdma", "mlx5_0/ports/1/link_layer", "InfiniBand"]
["rdma", "rxe0/ports/1/state", "1: DOWN"]
["rdma", "gpu", "/sys/devices/pci0000:15/0000:15:01.0/0000:1b:00.0"]
["resolves", "controller", "192.0.2.1"]
["peer", "head", "10.0.0.10", "6817", "silent"]
["clock_at_end", "1800000002.5"]
["end"]
"""


def run_here(probe: Probe, path: str | None = None) -> str:
    # A busy machine, or one whose name server does not answer, needs longer than a host may take.
    environment = os.environ | {"PEER_TIMEOUT_S": "600"} | ({"PATH": path} if path else {})
    command = ["sh", "-c", render_script(probe)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_recorded_facts() -> None:
    assert parse_facts(RECORDED) == MachineFacts(
        os="ubuntu 24.04",
        os_title="Ubuntu 24.04.3 LTS",
        arch="x86_64",
        init="systemd",
        hostname="rack1-1",
        machine=("3a790b17", "net:[4026531833]"),
        cpus=128,
        memory_mb=2_063_859,
        python="3.12.3",
        root=False,
        root_error="sudo: a password is required",
        free_mb={"/": 800_000, "/shared": 90_000_000},
        active=frozenset({"munge"}),
        files=frozenset({"/etc/slurm/slurm.conf"}),
        slurm="23.11.4",
        filters=frozenset({"iptables"}),
        ports=frozenset({22, 6818}),
        sshd_includes=False,
        accounts=frozenset({("alice", 2000, "Alice")}),
        mounts={"/shared": Mount("nas:/export", "nfs4", read_only=True)},
        hanging=frozenset({"/data"}),
        gpus=1,
        gpu_models=("NVIDIA H100 80GB HBM3",),
        driver="NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05",
        modules=frozenset({"nouveau"}),
        rdma=RdmaFacts(
            (
                RdmaPort("mlx5_0", 1, "ACTIVE", gbps=400.0, link_layer="InfiniBand"),
                RdmaPort("rxe0", 1, "DOWN"),
            ),
            (("0000:15:01.0", "0000:1b:00.0"),),
        ),
        resolved={"controller": "192.0.2.1"},
        peers={Peer("head", "10.0.0.10", 6817): "silent"},
        clock=1_800_000_000.5,
        clock_at_end=1_800_000_002.5,
    )


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("", "the answer ends early"),
        (RECORDED.replace('["end"]\n', ""), "the answer ends early"),
        (RECORDED.replace('"128"', '"many"'), "unexpected answer (invalid literal for int() with base 10: 'many')"),
        (RECORDED.replace('"silent"', '"loud"'), "unexpected result of a connection: 'loud'"),
        ('["os\n', "unexpected answer (Unterminated string starting at: line 1 column 2 (char 1))"),
    ],
)
def test_an_incomplete_answer_is_an_error(output: str, message: str) -> None:
    with pytest.raises(FactsError) as refused:
        parse_facts(output)
    assert str(refused.value) == message


def test_the_script_reads_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        open_port, closed_port = server.getsockname()[1], closed.getsockname()[1]
        peers = (
            Peer("open", "127.0.0.1", open_port),
            Peer("closed", "127.0.0.1", closed_port),
            Peer("nowhere", "no-such-host.invalid", 6817),
        )
        before = time.time()
        facts = parse_facts(
            run_here(Probe(("/", "/no/such"), {"root": 0, "nobody-here": 59_999}, ("localhost",), peers))
        )
        after = time.time()
    assert facts.arch == platform.machine()
    assert facts.hostname == socket.gethostname()
    assert facts.cpus == os.sysconf("SC_NPROCESSORS_ONLN")
    assert facts.memory_mb == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    assert before <= facts.clock <= facts.clock_at_end <= after
    assert facts.root == (os.geteuid() == 0) or not facts.root_error
    assert facts.free_mb["/"] > 0
    assert list(facts.mounts) == ["/"]
    assert open_port in facts.ports
    assert facts.accounts == {("root", 0, pwd.getpwnam("root").pw_gecos)}
    assert facts.resolved == {"localhost": "127.0.0.1"}
    assert facts.peers == {peers[0]: "open", peers[1]: "closed", peers[2]: "unresolved"}
    assert len(facts.machine) == 2


def test_names_are_soon_resolved_one_by_one_if_the_resolver_does_not_answer_for_several(tmp_path: Path) -> None:
    getent = tmp_path / "getent"
    getent.write_text('#!/bin/sh\n[ $# = 2 ] || exec sleep 600\necho "192.0.2.1  STREAM $2"\n')
    getent.chmod(0o755)
    began = time.monotonic()
    facts = parse_facts(run_here(Probe(names=("gpu-1", "gpu-2")), f"{tmp_path}:{os.environ['PATH']}"))
    assert facts.resolved == {"gpu-1": "192.0.2.1", "gpu-2": "192.0.2.1"}
    # Not after the timeout of a peer, which is 600 s here.
    assert time.monotonic() - began < 300


def test_quotes_and_backslashes_are_escaped(tmp_path: Path) -> None:
    fake = tmp_path / "uname"
    fake.write_text("#!/bin/sh\nprintf '%s\\n' 'a\"b\\c'\n")
    fake.chmod(0o755)
    facts = parse_facts(run_here(Probe(), f"{tmp_path}:{os.environ['PATH']}"))
    assert facts.arch == 'a"b\\c'


def test_a_filesystem_that_hangs_is_reported(tmp_path: Path) -> None:
    # What `timeout` returns for a command that it had to end.
    fake = tmp_path / "timeout"
    fake.write_text("#!/bin/sh\nexit 124\n")
    fake.chmod(0o755)
    probe = Probe(mounts=("/",), peers=(Peer("head", "10.0.0.10", 6817),))
    facts = parse_facts(run_here(probe, f"{tmp_path}:{os.environ['PATH']}"))
    assert facts.hanging == {"/"}
    assert facts.peers == {probe.peers[0]: "silent"}


def test_sudo_that_wants_a_password_is_reported(tmp_path: Path) -> None:
    for name, text in (("id", "echo 1000"), ("sudo", "echo 'sudo: a password is required' >&2; exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    facts = parse_facts(run_here(Probe(), f"{tmp_path}:{os.environ['PATH']}"))
    assert (facts.root, facts.root_error) == (False, "sudo: a password is required")
