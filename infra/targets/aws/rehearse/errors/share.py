"""The share of all pairs that one rehearsal covers: some codes, in an order drawn from a seed, for some time."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from infra.engine.stop import BAD_INPUT, Stop
from infra.targets.aws.launcher.error_codes import CODES
from infra.targets.aws.rehearse.errors.call_sites import read_sites
from infra.targets.aws.rehearse.errors.classes import group_codes
from infra.targets.error_coverage import ErrorOptions

# `gone` is left out: it is no error but the answer that a resource does not exist.
TRANSIENT: tuple[str, ...] = CODES["throttle"]
FATAL: tuple[str, ...] = tuple(
    code for kind, codes in CODES.items() if kind not in ("throttle", "gone") for code in codes
)
ALL_CODES = (*TRANSIENT, *FATAL)
SAMPLE = tuple(names[0] for names in group_codes(ALL_CODES))
"""One code of each class."""
_ALL, _SAMPLE = "all", "sample"
_MINUTE_S = 60.0

Item = TypeVar("Item")


@dataclass(frozen=True)
class Share:
    """Which codes a rehearsal injects, in which order, and for how long."""

    codes: tuple[str, ...]
    seed: int = 1
    began_s: float = 0.0
    ends_s: float = math.inf
    """Both as in `time.monotonic()`."""
    commands: tuple[str, ...] = ()
    """Commands of the list of call sites whose calls meet errors."""

    @property
    def is_over(self) -> bool:
        """Whether no more errors are injected; what has begun still ends in order."""
        return time.monotonic() >= self.ends_s

    @property
    def first_half(self) -> Share:
        """The same share with half of the time."""
        return replace(self, ends_s=self.began_s + (self.ends_s - self.began_s) / 2)

    def shuffle(self, items: Sequence[Item]) -> list[Item]:
        """Return items in the order of the seed: a rehearsal that ends early should not always leave out the same."""
        return random.Random(self.seed).sample(items, len(items))  # noqa: S311  # no secret


def begin_share(options: ErrorOptions) -> Share:
    """Return the share that a person has chosen, from now on; raise Stop if there is no such code or command."""
    began_s = time.monotonic()
    ends_s = math.inf if options.minutes is None else began_s + options.minutes * _MINUTE_S
    commands = choose_commands(options.commands, read_sites())
    return Share(choose_codes(options.errors), options.seed, began_s, ends_s, commands)


def choose_commands(commands: str, listed: Iterable[str]) -> tuple[str, ...]:
    """Return the listed commands of `all` or of names separated by commas; raise Stop if there is no such command."""
    names = tuple(listed)
    if commands == _ALL:
        return names
    chosen = {name.strip() for name in commands.split(",")}
    if unknown := sorted(chosen - set(names)):
        allowed = f"{_ALL}, or commands separated by commas: {', '.join(names)}"
        raise Stop(f"--commands: '{unknown[0]}' is not allowed; allowed: {allowed}", f"--commands {_ALL}", BAD_INPUT)
    return tuple(name for name in names if name in chosen)


def choose_codes(errors: str) -> tuple[str, ...]:
    """Return the codes of `all`, of `sample`, or of a list; raise Stop if there is no such code."""
    if errors in (_ALL, _SAMPLE):
        return ALL_CODES if errors == _ALL else SAMPLE
    codes = tuple(dict.fromkeys(code.strip() for code in errors.split(",")))
    if unknown := [code for code in codes if code not in ALL_CODES]:
        allowed = f"{_ALL}, {_SAMPLE} (one code of each class), or codes separated by commas: {', '.join(ALL_CODES)}"
        raise Stop(f"--errors: '{unknown[0]}' is not allowed; allowed: {allowed}", f"--errors {_SAMPLE}", BAD_INPUT)
    return codes
