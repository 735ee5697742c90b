"""Measure the pre-flight of hosts: containers with OpenSSH, which are asked for all their facts over SSH.

    .venv/bin/python -m benchmarks.hosts_preflight [--hosts 32] [--rounds 5] [--json FILE]

All containers are on this machine, so it also does the work of the hosts: its processors are the limit, and a busy
machine takes longer than the network of a real rack would. Needs the node image.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, cast

from benchmarks.figures import Figure, report
from cluster import names
from cluster.spec.model import Software
from infra.resources import ssh_key
from infra.targets.hosts.preflight.survey import judge_answers, survey_hosts
from infra.targets.hosts.spec import Hosts, hosts_section
from infra.targets.registry import load_spec

AT_MOST_S = 5.0
# sshd of the image has no keys yet.
START = """set -e
ssh-keygen -q -A
install -d -m 700 "$HOME/.ssh" /run/sshd
echo '{key}' >"$HOME/.ssh/authorized_keys"
# Docker's resolver asks a server that this network does not reach, and waits ten seconds for each unknown name.
sed -i 's/^hosts:.*/hosts: files/' /etc/nsswitch.conf
exec /usr/sbin/sshd -D
"""
# sshd writes the file when it listens.
LISTENING = "until [ -e /run/sshd.pid ]; do sleep 0.1; done"
SSHD_S = 120


@contextmanager
def run_hosts(count: int, public_key: str) -> Iterator[dict[str, dict[str, Any]]]:
    """Start hosts and yield how a spec describes them, by name; remove them at the end of the block."""
    cluster = f"preflight-{os.getpid():x}"
    label = f"{names.CLUSTER}={cluster}"
    start = START.format(key=public_key)
    try:
        _docker("network", "create", "--internal", "--label", label, cluster)
        described, containers = {}, []
        for number in range(count):
            box = ["--detach", "--init", "--hostname", f"host-{number}", "--network", cluster, "--label", label]
            image = ["--entrypoint", "sh", names.image(Software().slurm)]
            container = _docker("run", *box, *image, "-c", start)
            # Its only network.
            form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
            described[f"host-{number}"] = {"address": _docker("inspect", "--format", form, container)}
            containers.append(container)
        for container in containers:
            _docker("exec", container, "timeout", str(SSHD_S), "sh", "-c", LISTENING)
        yield described
    finally:
        for container in _docker("ps", "--all", "--quiet", "--filter", f"label={label}").split():
            _docker("rm", "--force", container)
        for network in _docker("network", "ls", "--quiet", "--filter", f"label={label}").split():
            _docker("network", "rm", network)


def _docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def measure(described: dict[str, dict[str, Any]], identity: Path) -> float:
    """Return the seconds of one pre-flight in which every host answers."""
    controller, *others = described
    spec = load_spec(
        {
            "name": "preflight",
            "target": "hosts",
            "groups": {"gpu": {"count": len(others)}},
            "login": {"enabled": False},
            "storage": {"shared": {"kind": "existing"}},
            "hosts": {
                "machines": described,
                "controller": controller,
                "groups": {"gpu": {"match": others}},
                "user": "root",
                "identity_file": str(identity),
                "trust_first_use": True,
            },
        }
    )
    section = cast(Hosts, hosts_section(spec))
    began = time.monotonic()
    answers = survey_hosts(spec, section, lambda _: None)
    judge_answers(spec, section, answers)
    seconds = time.monotonic() - began
    silent = [f"{answer.host}: {answer.problem}" for answer in answers if answer.facts is None]
    if silent:
        raise SystemExit(f"hosts_preflight: {len(silent)} hosts did not answer, such as {silent[0]}")
    return seconds


def main() -> int:
    """Run the benchmark and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hosts_preflight")
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    key = ssh_key.generate("benchmark")
    with tempfile.TemporaryDirectory() as folder, run_hosts(options.hosts, key.public) as described:
        identity = Path(folder) / "id"
        identity.write_text(key.private)
        measure(described, identity)  # warms the page cache
        began = time.process_time()
        seconds = [measure(described, identity) for _ in range(options.rounds)]
        own = (time.process_time() - began) / options.rounds
    figures = [
        Figure(f"pre-flight of {options.hosts} hosts, median of {options.rounds}", median(seconds), at_most=AT_MOST_S),
        Figure("slowest", max(seconds)),
        Figure("processor time of the pre-flight itself, without that of the hosts", own),
        Figure("processes that ran or waited for a processor", os.getloadavg()[0], unit=""),
    ]
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")
    print(report(figures))
    return int(any(figure.verdict == "FAIL" for figure in figures))


if __name__ == "__main__":
    raise SystemExit(main())
