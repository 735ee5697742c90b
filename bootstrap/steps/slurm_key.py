"""The cluster's authentication key, the same on every node, and how daemons that hold it are (re)started."""

from __future__ import annotations

from bootstrap.action import Action, digest, enable, mark, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts

PATH = "/etc/slurm/slurm.key"

# Settings that a running daemon does not take over by `scontrol reconfigure`.
FIXED = ("AuthType=", "ClusterName=", "ProctrackType=", "SelectType=", "StateSaveLocation=", "TaskPlugin=")

HARMLESS = "initialization failed|glob parsing|.Include. failed|keepalive interval|drm root|rsmi_init"


def key(facts: Facts, desired: Desired) -> list[Action]:
    return write(facts, PATH, desired.secrets.slurm_key, 0o600, "slurm:slurm")


def restart_digest(desired: Desired, options: str = "") -> str:
    """Changes when a daemon must be restarted rather than reconfigured."""
    conf = desired.slurm_files["/etc/slurm/slurm.conf"].content
    fixed = [line for line in conf.splitlines() if line.startswith(FIXED)]
    return digest(desired.secrets.slurm_key, options, *fixed)


def restart(unit: str, desired: Desired, options: str = "") -> str:
    """Shell text that enables and restarts a daemon, says what it complained about, and remembers what it was told."""
    # A daemon that failed too often is not started again before it is forgiven.
    again = f"systemctl restart {unit} 2>/dev/null || {{ systemctl reset-failed {unit}; systemctl restart {unit}; }}"
    return (
        f"{enable(unit)}\n{again} || {{ {last_words(unit)}; exit 1; }}\n{mark(unit, restart_digest(desired, options))}"
    )


def last_words(unit: str) -> str:
    """Shell text that prints the last complaints of a daemon to stderr, without those that every Slurm daemon makes."""
    return (
        f"journalctl -u {unit} --since -60s -o cat --no-pager 2>/dev/null | grep -aiE 'fatal|error' "
        f"| grep -avE '{HARMLESS}' | tail -n 2 | paste -sd ';' | grep . >&2 || echo '{unit} did not start' >&2"
    )
