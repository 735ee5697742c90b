"""Slurm's daemons: which role runs which, the key they share, and how they are started and restarted."""

from __future__ import annotations

from bootstrap.action import Action, digest, enable_unit, remove_file, write_file, write_marker
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from cluster.inventory import Role
from slurm.config.auth_key import KEY_PATH, KEY_SET_PATH, is_key_set

DAEMONS: dict[Role, tuple[str, ...]] = {
    "controller": ("slurmctld", "slurmdbd"),
    "login": ("sackd",),
    "compute": ("slurmd",),
}
START_TIMEOUT_S = 60.0

# Settings that a running daemon does not adopt by `scontrol reconfigure`.
RESTART_SETTINGS = (
    "AuthType=",
    "ClusterName=",
    "JobContainerType=",
    "MaxJobCount=",
    "NamespaceType=",
    "ProctrackType=",
    "SelectType=",
    "StateSaveLocation=",
    "TaskPlugin=",
)

# Harmless errors that every Slurm daemon logs at start.
HARMLESS_ERRORS = (
    "initialization failed|glob parsing|.Include. failed|keepalive interval|drm root|rsmi_init|for pam_slurm_adopt"
)


def write_key(facts: Facts, desired: Desired) -> list[Action]:
    """Return the actions that write the cluster's authentication key, or keys while it is rotated, on every node.

    Slurm ignores slurm.key while there is a slurm.jwks, so that the daemon always finds a complete file.
    """
    content = desired.secrets.slurm_key
    path = KEY_SET_PATH if is_key_set(content) else KEY_PATH
    written = write_file(facts, path, content, 0o600, "slurm:slurm")
    return written if is_key_set(content) else [*written, *remove_file(facts, KEY_SET_PATH)]


def restart_digest(desired: Desired, options: str = "") -> str:
    """Return a digest that changes when a daemon must be restarted instead of reconfigured."""
    conf = desired.slurm_files["/etc/slurm/slurm.conf"].content
    fixed = [line for line in conf.splitlines() if line.startswith(RESTART_SETTINGS)]
    return digest(desired.secrets.slurm_key, options, *fixed)


def restart(unit: str, desired: Desired, options: str = "") -> str:
    """Return shell text that enables and restarts a daemon, prints its errors, and records what it loaded."""
    # systemd refuses to start a unit that failed too often until its counter is reset.
    start = f"systemctl restart {unit} 2>/dev/null || {{ systemctl reset-failed {unit}; systemctl restart {unit}; }}"
    marker = write_marker(unit, restart_digest(desired, options))
    return f"{enable_unit(unit)}\n{start} || {{ {print_errors(unit)}; exit 1; }}\n{marker}"


def print_errors(unit: str) -> str:
    """Return shell text that prints a daemon's last errors to stderr, without the harmless ones."""
    return (
        f"journalctl -u {unit} --since -60s -o cat --no-pager 2>/dev/null | grep -aiE 'fatal|error' "
        f"| grep -avE '{HARMLESS_ERRORS}' | tail -n 2 | paste -sd ';' | grep . >&2 || echo '{unit} did not start' >&2"
    )
