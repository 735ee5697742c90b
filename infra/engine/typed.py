"""The command line that a person can type here: `make` where it has the command, else the program in `.venv`."""

from __future__ import annotations

import re
import shlex

from infra.home import DEFAULT_STACK

_MADE = frozenset({"up", "status", "ssh", "submit", "fabric", "teardown", "demo", "check", "cost"})
_NAMED = re.compile(r"\bmuster (up|status|teardown|bootstrap)\b")
_SHELL = re.compile(r"\bmuster ssh ([a-z][a-z0-9-]*)")


def typed(command: str, stack: str, *settings: str, then: str = "") -> str:
    """`settings` are make's (`FORCE=1`); `then` is a command for a node, as it stands after the dashes."""
    if command in _MADE and not then:
        return " ".join(["make", command, *settings, *([] if stack == DEFAULT_STACK else [f"STACK={stack}"])])
    words = [".venv/bin/muster", command, *([] if stack == DEFAULT_STACK else ["--stack", shlex.quote(stack)])]
    return " ".join([*words, *(["--", then] if then else [])])


def retyped(text: str, stack: str) -> str:
    """What was said by parts that do not know which stack they belong to."""
    text = _SHELL.sub(lambda found: typed("ssh", stack, f"NODE={found[1]}"), text)
    return _NAMED.sub(lambda found: typed(found[1], stack), text)
