"""Options that several commands have."""

from __future__ import annotations

import os
from contextvars import ContextVar
from typing import Annotated

import typer

from infra.home import DEFAULT_STACK

chosen_stack = ContextVar("chosen_stack", default=DEFAULT_STACK)
"""Stack of the command, for the commands in messages."""


def _complete_stack() -> list[str]:
    from infra.home import Home

    return Home.of(os.environ).stack_names()


def _remember_stack(name: str) -> str:
    chosen_stack.set(name)
    return name


Stack = Annotated[
    str,
    typer.Option(
        "--stack",
        "-s",
        help="NAME of the stack file Pulumi.NAME.yaml.",
        autocompletion=_complete_stack,
        callback=_remember_stack,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
