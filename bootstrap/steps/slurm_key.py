"""The cluster's authentication key, the same on every node, and how daemons that hold it are (re)started."""

from __future__ import annotations

from bootstrap.action import Action, digest, enable, mark, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts

PATH = "/etc/slurm/slurm.key"

# Settings that a running daemon does not take over by `scontrol reconfigure`.
FIXED = ("AuthType=", "ClusterName=", "ProctrackType=", "SelectType=", "StateSaveLocation=", "TaskPlugin=")


def key(facts: Facts, desired: Desired) -> list[Action]:
    return write(facts, PATH, desired.secrets.slurm_key, 0o600, "slurm:slurm")


def restart_digest(desired: Desired, options: str = "") -> str:
    """Changes when a daemon must be restarted rather than reconfigured."""
    conf = desired.slurm_files["/etc/slurm/slurm.conf"].content
    fixed = [line for line in conf.splitlines() if line.startswith(FIXED)]
    return digest(desired.secrets.slurm_key, options, *fixed)


def restart(unit: str, desired: Desired, options: str = "") -> str:
    """Shell text that enables and restarts a daemon, says what it complained about, and remembers what it was told."""
    complain = f"systemctl restart {unit} || {{ {last_words(unit)}; exit 1; }}"
    return f"{enable(unit)}\n{complain}\n{mark(unit, restart_digest(desired, options))}"


def last_words(unit: str) -> str:
    """Shell text that prints the last complaint of a daemon, from its log or the journal, to stderr."""
    return (
        f"{{ tail -n 200 /var/log/slurm/{unit}.log; journalctl -u {unit} -n 50 -o cat --no-pager; }} 2>/dev/null "
        f"| grep -aiE 'fatal|error' | tail -n 1 | grep . >&2 || echo '{unit} did not start' >&2"
    )
