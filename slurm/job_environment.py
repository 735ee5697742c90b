"""Rules about variables in a job's environment that harm NCCL, libfabric or torch, or that they no longer need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["harmful", "obsolete", "needless"]
Fabric = Literal["tcp", "efa", "infiniband", "roce"]
EVERYWHERE: frozenset[Fabric] = frozenset({"tcp", "efa", "infiniband", "roce"})
EFA: frozenset[Fabric] = frozenset({"efa"})
PORTS: frozenset[Fabric] = frozenset({"infiniband", "roce"})
RDMA: frozenset[Fabric] = frozenset({"efa", "infiniband", "roce"})


@dataclass(frozen=True)
class Rule:
    """One variable that jobs should not set."""

    variable: str
    """A name, or a prefix followed by `*`."""
    verdict: Verdict
    why: str
    fabrics: frozenset[Fabric] = EVERYWHERE
    value: str = ""
    """Regular expression of the values that the rule applies to; empty for any value."""


@dataclass(frozen=True)
class Setting:
    """A variable that a job sets."""

    variable: str
    value: str
    line: int = 0
    """Line of the job file; 0 if it comes from the environment itself."""


@dataclass(frozen=True)
class Finding:
    """A setting that a rule applies to."""

    setting: Setting
    verdict: Verdict
    why: str

    def __str__(self) -> str:
        where = f"line {self.setting.line}: " if self.setting.line else ""
        return f"{self.verdict:<8} {where}{self.setting.variable}={self.setting.value}: {self.why}"


# Sources: the EFA plugin's doc/efa-env-var.md and its platform code, the EFA cheat sheet of awslabs,
# NCCL's and PyTorch's pages of environment variables.
RULES: tuple[Rule, ...] = (
    Rule("NCCL_NET", "harmful", "the job would use TCP even though the nodes have a faster fabric", RDMA, "Socket"),
    Rule("NCCL_IB_DISABLE", "harmful", "switches the fabric off; the job would run over TCP", RDMA, "1"),
    Rule("NCCL_IB_HCA", "harmful", "hides the ports that the node's facts show to be those of the fabric", PORTS),
    Rule("NCCL_IB_GID_INDEX", "needless", "only affects RoCE, where each node sets it by its own addresses", PORTS),
    Rule("FI_PROVIDER", "harmful", "libfabric would not use EFA", EFA, "(?!efa$).*"),
    Rule("NCCL_NET_PLUGIN", "harmful", "NCCL would not load the EFA plugin", EFA, "none|spcx"),
    Rule("NCCL_ALGO", "harmful", "switches the tuner of NCCL and of the EFA plugin off"),
    Rule("NCCL_PROTO", "harmful", "switches the tuner off; was needed by EFA plugins up to 1.5"),
    Rule("NCCL_BUFFSIZE", "harmful", "hides the value that the EFA plugin sets for the machine", EFA),
    Rule("NCCL_P2P_NET_CHUNKSIZE", "harmful", "hides the value that the EFA plugin sets for the machine", EFA),
    Rule("NCCL_MIN_NCHANNELS", "needless", "NCCL chooses it by the machine's topology", EFA),
    Rule("NCCL_P2P_DISABLE", "harmful", "GPUs of one node would talk through host memory", value="1"),
    Rule("NCCL_SHM_DISABLE", "harmful", "ranks of one node would talk through the network", value="1"),
    Rule("RDMAV_*", "harmful", "breaks memory registration on newer kernels", EFA),
    Rule("NCCL_SOCKET_IFNAME", "harmful", "excludes the interface that ranks use to meet", value=r"\^.*\beth\b.*"),
    Rule("NCCL_SOCKET_NTHREADS", "needless", "only affects TCP", RDMA),
    Rule("NCCL_NSOCKS_PERTHREAD", "needless", "only affects TCP", RDMA),
    Rule("FI_EFA_USE_DEVICE_RDMA", "obsolete", "libfabric does this by itself since 1.18", EFA),
    Rule("FI_EFA_FORK_SAFE", "obsolete", "the EFA plugin sets it", EFA),
    Rule("FI_EFA_SET_CUDA_SYNC_MEMOPS", "obsolete", "only needed by EFA installers before 1.29.1", EFA),
    Rule("NCCL_ASYNC_ERROR_HANDLING", "obsolete", "is called TORCH_NCCL_ASYNC_ERROR_HANDLING, and is on by default"),
    Rule("NCCL_BLOCKING_WAIT", "obsolete", "is called TORCH_NCCL_BLOCKING_WAIT; slows every collective"),
    Rule("NCCL_LAUNCH_MODE", "obsolete", "NCCL chooses it", value="PARALLEL|GROUP"),
    Rule("NCCL_DEBUG", "needless", "fills every rank's log; use it only to debug", value="(?i)info|trace"),
    Rule("CUDA_LAUNCH_BLOCKING", "harmful", "waits for every kernel: several times slower", value="1"),
    Rule("TORCH_DISTRIBUTED_DEBUG", "harmful", "checks every collective with another one", value="DETAIL"),
)  # fmt: skip

_ASSIGNMENT = re.compile(r"\s*(?P<name>[A-Z][A-Z0-9_]*)=(?P<value>\"[^\"]*\"|'[^']*'|[^\s;#]*)")


def parse_settings(job: str) -> Iterator[Setting]:
    """Yield the settings in the lines of a job file; values that it computes are not evaluated."""
    for number, line in enumerate(job.splitlines(), 1):
        for command in re.split(r";|&&", line):
            for name, value in _parse_assignments(re.sub(r"^\s*export\s+", "", command)):
                yield Setting(name, value, number)


def _parse_assignments(command: str) -> Iterator[tuple[str, str]]:
    """Yield the assignments at the beginning of a command: later ones are arguments."""
    position = 0
    while match := _ASSIGNMENT.match(command, position):
        yield match["name"], match["value"].strip("\"'")
        position = match.end()


def check_settings(settings: Iterable[Setting], fabric: Fabric) -> list[Finding]:
    """Return a finding for each setting that a rule for this fabric applies to."""
    return [
        Finding(setting, rule.verdict, rule.why)
        for setting in settings
        for rule in RULES
        if fabric in rule.fabrics and _matches_name(rule, setting.variable) and _matches_value(rule, setting.value)
    ]


def _matches_name(rule: Rule, variable: str) -> bool:
    return variable.startswith(rule.variable[:-1]) if rule.variable.endswith("*") else variable == rule.variable


def _matches_value(rule: Rule, value: str) -> bool:
    return not rule.value or re.fullmatch(rule.value, value) is not None
