"""`python -m simulator calibrate`: measure this machine; torchrun starts `simulator.calibrate` on many ranks."""

from __future__ import annotations

import sys

from simulator.calibrate.options import parse_options
from simulator.terminal import error_prefix, program_name


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    parse_options(
        arguments, program_name("calibrate")
    )  # Answers --help and reports invalid options before torch is imported.
    try:
        from simulator.calibrate.__main__ import main as measure  # noqa: PLC0415  # needs torch
    except ModuleNotFoundError as error:
        fix = f"`{program_name('calibrate')} --help` shows how to get it"
        print(f"{error_prefix()}: {error.name} is not installed here; {fix}", file=sys.stderr)
        return 2
    return measure(arguments, error_prefix())
