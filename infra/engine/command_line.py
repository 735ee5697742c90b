"""Commands as a person can type them: with `make` if it has the command, otherwise with the program in `.venv`."""

from __future__ import annotations

import re
import shlex

from infra.home import DEFAULT_STACK

_MAKE_TARGETS = frozenset(
    {"up", "status", "ssh", "submit", "fabric", "teardown", "demo", "check", "cost", "upgrade", "backup", "restore"}
)
_STACK_COMMAND = re.compile(r"(?<!/)\bmuster (up|demo|status|teardown|bootstrap|upgrade)\b")
_SSH_COMMAND = re.compile(r"(?<!/)\bmuster ssh ([a-z][a-z0-9-]*)")
# Only where a command begins: parts also make up a whole.
_MAKE_COMMAND = re.compile(
    rf"(?<![^`])make ({'|'.join(sorted(_MAKE_TARGETS))})\b(?!-)((?: [A-Z_]+=(?:\"[^\"]*\"|'[^']*'|[^\s`,;]*))*)"
)


def format_command(command: str, stack: str, *settings: str, then: str = "") -> str:
    """Return the command line; `settings` are variables of make (`FORCE=1`), `then` is a command for a node."""
    if command in _MAKE_TARGETS and not then:
        return " ".join(["make", command, *settings, *([] if stack == DEFAULT_STACK else [f"STACK={stack}"])])
    arguments = [".venv/bin/muster", command, *([] if stack == DEFAULT_STACK else ["--stack", shlex.quote(stack)])]
    return " ".join([*arguments, *(["--", then] if then else [])])


def rewrite_commands(text: str, stack: str) -> str:
    """Return a message with its commands rewritten for this stack, except those that name a stack.

    Validators, resources and nodes do not know the name of their stack: their messages name none.
    """
    text = _MAKE_COMMAND.sub(lambda match: _add_stack(match, stack), text)
    text = _SSH_COMMAND.sub(lambda match: format_command("ssh", stack, f"NODE={match[1]}"), text)
    return _STACK_COMMAND.sub(lambda match: format_command(match[1], stack), text)


def _add_stack(match: re.Match[str], stack: str) -> str:
    return match[0] if " STACK=" in match[2] else format_command(match[1], stack, *filter(None, [match[2].strip()]))
