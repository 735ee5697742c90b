"""Options that several commands have."""

# ruff: noqa: PLC0415
# Imports inside the functions keep start-up under a second.
from __future__ import annotations

import os
from typing import Annotated

import typer


def _complete_stack() -> list[str]:
    from infra.home import Home

    return Home.of(os.environ).stack_names()


Stack = Annotated[
    str,
    typer.Option("--stack", "-s", help="NAME of the stack file Pulumi.NAME.yaml.", autocompletion=_complete_stack),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
