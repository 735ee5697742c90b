"""Variables in a job's environment that NCCL, libfabric or torch no longer need, or are harmed by. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["harmful", "obsolete", "needless"]
Fabric = Literal["tcp", "efa", "infiniband"]
EVERYWHERE: frozenset[Fabric] = frozenset({"tcp", "efa", "infiniband"})
EFA: frozenset[Fabric] = frozenset({"efa"})
RDMA: frozenset[Fabric] = frozenset({"efa", "infiniband"})


@dataclass(frozen=True)
class Rule:
    variable: str
    """A name, or a beginning followed by `*`."""
    verdict: Verdict
    why: str
    fabrics: frozenset[Fabric] = EVERYWHERE
    value: str = ""
    """A regular expression for the values that are meant; empty: any."""


@dataclass(frozen=True)
class Setting:
    variable: str
    value: str
    line: int = 0
    """Of the job file; 0 where it comes from the environment itself."""


@dataclass(frozen=True)
class Finding:
    setting: Setting
    verdict: Verdict
    why: str

    def __str__(self) -> str:
        where = f"line {self.setting.line}: " if self.setting.line else ""
        return f"{self.verdict:<8} {where}{self.setting.variable}={self.setting.value}: {self.why}"


# Sources: aws-ofi-nccl doc/efa-env-var.md and src/platform-aws.cpp, the EFA cheat sheet of
# awslabs/awsome-distributed-ai, NCCL's and PyTorch's pages of environment variables.
RULES: tuple[Rule, ...] = (
    Rule("NCCL_NET", "harmful", "the job would run over TCP although the nodes have a faster fabric", RDMA, "Socket"),
    Rule("NCCL_IB_DISABLE", "harmful", "switches the fabric off; the job would run over TCP", RDMA, "1"),
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
    Rule("NCCL_SOCKET_IFNAME", "harmful", "leaves out what ranks find each other by", value=r"\^.*\beth\b.*"),
    Rule("NCCL_SOCKET_NTHREADS", "needless", "is for TCP only", RDMA),
    Rule("NCCL_NSOCKS_PERTHREAD", "needless", "is for TCP only", RDMA),
    Rule("FI_EFA_USE_DEVICE_RDMA", "obsolete", "libfabric does so by itself since 1.18", EFA),
    Rule("FI_EFA_FORK_SAFE", "obsolete", "the EFA plugin sets it", EFA),
    Rule("FI_EFA_SET_CUDA_SYNC_MEMOPS", "obsolete", "was for EFA installers before 1.29.1", EFA),
    Rule("NCCL_ASYNC_ERROR_HANDLING", "obsolete", "is called TORCH_NCCL_ASYNC_ERROR_HANDLING, and is on by default"),
    Rule("NCCL_BLOCKING_WAIT", "obsolete", "is called TORCH_NCCL_BLOCKING_WAIT; slows every collective"),
    Rule("NCCL_LAUNCH_MODE", "obsolete", "NCCL chooses it", value="PARALLEL|GROUP"),
    Rule("NCCL_DEBUG", "needless", "fills every rank's log; for finding faults only", value="(?i)info|trace"),
    Rule("CUDA_LAUNCH_BLOCKING", "harmful", "waits for every kernel: several times slower", value="1"),
    Rule("TORCH_DISTRIBUTED_DEBUG", "harmful", "checks every collective with another one", value="DETAIL"),
)  # fmt: skip

_ASSIGNMENT = re.compile(r"\s*(?P<name>[A-Z][A-Z0-9_]*)=(?P<value>\"[^\"]*\"|'[^']*'|[^\s;#]*)")


def settings(job: str) -> Iterator[Setting]:
    """What a job file sets, by reading its lines; what it computes stays unread."""
    for number, line in enumerate(job.splitlines(), 1):
        for command in re.split(r";|&&", line):
            for name, value in _assignments(re.sub(r"^\s*export\s+", "", command)):
                yield Setting(name, value, number)


def _assignments(command: str) -> Iterator[tuple[str, str]]:
    """Those at the beginning of a command: later words that look like it are arguments."""
    position = 0
    while match := _ASSIGNMENT.match(command, position):
        yield match["name"], match["value"].strip("\"'")
        position = match.end()


def from_environment(environment: Mapping[str, str]) -> Iterator[Setting]:
    yield from (Setting(name, value) for name, value in sorted(environment.items()))


def findings(given: Iterable[Setting], fabric: Fabric) -> list[Finding]:
    return [
        Finding(setting, rule.verdict, rule.why)
        for setting in given
        for rule in RULES
        if fabric in rule.fabrics and _names(rule, setting.variable) and _means(rule, setting.value)
    ]


def _names(rule: Rule, variable: str) -> bool:
    return variable.startswith(rule.variable[:-1]) if rule.variable.endswith("*") else variable == rule.variable


def _means(rule: Rule, value: str) -> bool:
    return not rule.value or re.fullmatch(rule.value, value) is not None
