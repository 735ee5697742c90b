"""What is asked of the planner, read from words; everything that cannot be meant is refused."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from cluster.spec import ClusterSpec, Purchase
from infra.targets.registry import target_of
from simulator.machines.profile import Profile
from simulator.machines.stack_names import MAX_NODES as MOST_NODES
from simulator.models import NamedModel
from simulator.search.space import Batch
from trainer.config.errors import ConfigError, ConfigProblem

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
MOST_TOKENS = 1e15
"""A hundred times what the largest public run has read."""
STEP_TOKENS = 4 * 2**20
"""Of one optimizer step where no preset says how many: what Llama 2 and 3 began with."""
LEAST_SHARE = 0.75
"""How far below its usual size a batch may be, so that numbers of nodes like 3 or 12 divide it."""


@dataclass(frozen=True)
class Question:
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
    """For the first machines; None: as long as for another one."""
    beyond_trainer: bool = False
    """Also show layouts that the trainer cannot run, where they would be better."""
    profile: Profile | None = None
    """The GPU of the machines, as measured; None goes by the catalog."""

    @property
    def region(self) -> str:
        return target_of(self.spec).region(self.spec)


def tokens(word: str) -> float:
    try:
        found = float(word)
    except ValueError:
        raise _bad("tokens", f"{word!r} is no number", "write for example 1e12") from None
    if not 1 <= found <= MOST_TOKENS:
        raise _bad("tokens", f"{word} is outside of 1 to {MOST_TOKENS:g}", "write for example 1e12")
    return found


def duration(word: str, where: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", word)
    if not match or not float(match[1]):
        raise _bad(where, f"{word!r} is no time", "write a number above 0 and s, m, h, d or w, such as 7d or 12h")
    return float(match[1]) * UNITS[match[2]]


def money(word: str) -> float:
    try:
        found = float(word.replace(",", ""))
    except ValueError:
        raise _bad("budget", f"{word!r} is no sum", "write US dollars, such as 50000") from None
    if not 0 < found < math.inf:
        raise _bad("budget", f"{word} is not above 0", "write US dollars, such as 50000")
    return found


def nodes(word: str) -> tuple[int, ...]:
    """`1..128`: powers of two, once and one and a half times; `4,6,10`: those and no others."""
    if match := re.fullmatch(r"(\d+)\.\.(\d+)", word):
        low, high = int(match[1]), int(match[2])
        usual = sorted({step * 2**power // 2 for power in range(1, 12) for step in (2, 3)})
        found = tuple(sorted({low, high, *(n for n in usual if low <= n <= high)}))
    elif re.fullmatch(r"\d+(,\d+)*", word):
        low = high = 0
        found = tuple(sorted({int(part) for part in word.split(",")}))
    else:
        raise _bad("nodes", f"{word!r} is no number of nodes", "write 16, 4,8,12 or 1..128")
    if low > high or not all(1 <= n <= MOST_NODES for n in found):
        raise _bad("nodes", f"{word} is outside of 1 to {MOST_NODES}", "write 16, 4,8,12 or 1..128")
    return found


def node_count(word: str) -> int:
    """For whoever asks of one cluster, not of a choice of them."""
    if not word.isascii() or not word.isdecimal():
        message = f"{word!r} is not one number; allowed: 1 to {MOST_NODES}"
        raise _bad("nodes", message, "write how many the job will have, such as 4; `plan` compares numbers of nodes")
    if not 1 <= int(word) <= MOST_NODES:
        raise _bad("nodes", f"{word} is outside of 1 to {MOST_NODES}", "write how many the job will have, such as 4")
    return int(word)


def batch(word: str | None, named: NamedModel) -> Batch:
    """`512`: exactly; `256..1024`: the largest in it that divides; None: what the preset has, or a little less."""
    if word is None:
        usual = named.preset.batch.size if named.preset else max(1, STEP_TOKENS // named.model.seq)
        return Batch(math.ceil(LEAST_SHARE * usual), usual)
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", word)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high:
        raise _bad("batch", f"{word!r} is no number of samples", "write 512 or 256..1024")
    return Batch(low, high)


def _bad(where: str, message: str, fix: str) -> ConfigError:
    return ConfigError([ConfigProblem(where, message, fix)])
