"""The question to the planner, parsed from command-line options; invalid input is rejected with the allowed values."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from cluster.spec import ClusterSpec, Purchase
from infra.targets.registry import target_of
from simulator.machines.profile import Profile
from simulator.machines.stack_names import MAX_NODES
from simulator.models import NamedModel
from simulator.search.space import Batch
from trainer.config.errors import ConfigError, ConfigProblem

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
MAX_TOKENS = 1e15
"""A hundred times the tokens of the largest public run."""
DEFAULT_STEP_TOKENS = 4 * 2**20
"""Tokens of an optimizer step without a preset: what Llama 2 and 3 started with."""
MIN_BATCH_SHARE = 0.75
"""Share of the default batch size that is still allowed, so that node counts such as 3 or 12 divide it."""


@dataclass(frozen=True)
class Question:
    """A model, a number of tokens, the machines to consider, and the limits of time and cost."""

    named: NamedModel
    tokens: float
    spec: ClusterSpec
    group: str
    instances: tuple[str, ...]
    nodes: tuple[int, ...]
    purchases: tuple[Purchase, ...]
    batch: Batch
    deadline_s: float | None = None
    budget_usd: float | None = None
    wait_s: float | None = None
    """Wait for the first machines; None: as long as for a replacement machine."""
    beyond_trainer: bool = False
    """Whether to also show better layouts that the trainer cannot run."""
    profile: Profile | None = None
    """The GPU of the machines as measured; None uses the catalog."""

    @property
    def region(self) -> str:
        return target_of(self.spec).region(self.spec)


def parse_tokens(text: str) -> float:
    """Return a number of tokens, such as 1e12."""
    try:
        tokens = float(text)
    except ValueError:
        raise _error("tokens", f"{text!r} is not a number", "write for example 1e12") from None
    if not 1 <= tokens <= MAX_TOKENS:
        raise _error("tokens", f"{text} is outside of 1 to {MAX_TOKENS:g}", "write for example 1e12")
    return tokens


def parse_duration(text: str, where: str) -> float:
    """Return the seconds of a duration such as 7d or 12h."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if not match or not float(match[1]):
        raise _error(
            where, f"{text!r} is not a duration", "write a number above 0 and s, m, h, d or w, such as 7d or 12h"
        )
    return float(match[1]) * UNITS[match[2]]


def parse_budget(text: str) -> float:
    """Return an amount of US dollars, such as 50,000."""
    try:
        usd = float(text.replace(",", ""))
    except ValueError:
        raise _error("budget", f"{text!r} is not an amount", "write US dollars, such as 50000") from None
    if not 0 < usd < math.inf:
        raise _error("budget", f"{text} is not above 0", "write US dollars, such as 50000")
    return usd


def parse_nodes(text: str) -> tuple[int, ...]:
    """Return node counts: `1..128` is powers of two and 1.5 times those, `4,6,10` is exactly these."""
    if match := re.fullmatch(r"(\d+)\.\.(\d+)", text):
        low, high = int(match[1]), int(match[2])
        sizes = sorted({step * 2**power // 2 for power in range(1, 12) for step in (2, 3)})
        counts = tuple(sorted({low, high, *(n for n in sizes if low <= n <= high)}))
    elif re.fullmatch(r"\d+(,\d+)*", text):
        low = high = 0
        counts = tuple(sorted({int(part) for part in text.split(",")}))
    else:
        raise _error("nodes", f"{text!r} is not a number of nodes", "write 16, 4,8,12 or 1..128")
    if low > high or not all(1 <= n <= MAX_NODES for n in counts):
        raise _error("nodes", f"{text} is outside of 1 to {MAX_NODES}", "write 16, 4,8,12 or 1..128")
    return counts


def parse_node_count(text: str) -> int:
    """Return a single number of nodes."""
    if not text.isascii() or not text.isdecimal():
        message = f"{text!r} is not a single number; allowed: 1 to {MAX_NODES}"
        raise _error("nodes", message, "write the job's number of nodes, such as 4; `plan` compares node counts")
    if not 1 <= int(text) <= MAX_NODES:
        raise _error("nodes", f"{text} is outside of 1 to {MAX_NODES}", "write the job's number of nodes, such as 4")
    return int(text)


def parse_batch(text: str) -> Batch:
    """Return the allowed batch sizes: `512` exactly, `256..1024` a range."""
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high:
        raise _error("batch", f"{text!r} is not a number of samples", "write 512 or 256..1024")
    return Batch(low, high)


def choose_batch(named: NamedModel) -> Batch:
    """Return the batch sizes if none is given: the preset's, or a little less."""
    default = named.preset.batch.size if named.preset else max(1, DEFAULT_STEP_TOKENS // named.model.seq)
    return Batch(math.ceil(MIN_BATCH_SHARE * default), default)


def _error(where: str, message: str, fix: str) -> ConfigError:
    return ConfigError([ConfigProblem(where, message, fix)])
