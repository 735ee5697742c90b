"""Issues as lines, and the invalid settings that every target with rented machines refuses in the same words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cluster.spec.issue import Issue

Data = dict[str, Any]


def format_issues(issues: Iterable[Issue]) -> list[str]:
    """Return each issue as a line."""
    return [f"{issue.level} {issue.where}: {issue.message}; {issue.fix}" for issue in issues]


def list_bad_settings(name: str, section: Data) -> dict[str, tuple[Data, str]]:
    """Return invalid changes of a spec and the issues of each; `name` is that of the target's section."""
    return {
        "no address range": (
            {name: {**section, "ssh_from": ["203.0.113.7/24"]}},
            f"error {name}.ssh_from[0]: '203.0.113.7/24' is not an IPv4 address range: 203.0.113.7/24 has host bits "
            "set; write for example 203.0.113.7/32, your public address and /32",
        ),
        "SSH for everybody": (
            {name: {**section, "ssh_from": ["0.0.0.0/0"]}},
            f"warning {name}.ssh_from[0]: '0.0.0.0/0' lets everybody connect to SSH; only the keys protect the "
            "machines; write the address ranges of those who log in",
        ),
        "no egress": (
            {"network": {"egress": False}},
            "error network.egress: false is not possible: bootstrap installs packages from the internet; remove it",
        ),
        "port of the login node": (
            {"login": {"enabled": True, "ssh_port": 2222}},
            "error login.ssh_port: 2222 cannot be published: the login node has its own address; "
            "remove it, and connect to its address",
        ),
        "small network": (
            {"network": {"cidr": "10.88.0.0/26"}},
            "error network.cidr: '10.88.0.0/26' is too small; allowed: /16 to /24; write a range of at least /24",
        ),
    }
