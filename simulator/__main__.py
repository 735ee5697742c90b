"""`python -m simulator COMMAND ...`: run a command; each is a module that is imported only when it is used."""

from __future__ import annotations

import os
import sys
from importlib import import_module

COMMANDS: dict[str, str] = {
    "plan": "choose the machines and layout of a run by time and cost",
    "auto": "choose the layout that replaces strategy auto, for the nodes of a stack",
    "predict": "predict step time, memory and cost of a run, or of a CSV file of runs or collectives",
    "evaluate": "compare predictions with the measured rows of a CSV file",
    "emulate": "run a job of up to 1,024 ranks in one process with a simulated clock (needs torch)",
    "collectives": "predict the time and bus bandwidth of a collective, and the algorithm NCCL chooses",
    "calibrate": "measure this machine or cluster, for better predictions (needs torch)",
    "report": "write a page that compares runs of the trainer with their predictions",
    "trace": "write the events of one step, for a trace viewer or as an image",
}
"""One line of help for each; `simulator.commands.NAME` has `main(arguments) -> exit status`."""


def main(arguments: list[str]) -> int:
    """Run a command and return its exit status."""
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print(_format_help())
        return 0
    if name not in COMMANDS:
        print(f"simulator: command: {name!r}; allowed: {', '.join(COMMANDS)}; choose one of them", file=sys.stderr)
        return 2
    status: int = import_module(f"simulator.commands.{name}").main(arguments[1:])
    return status


def _format_help() -> str:
    width = max(map(len, COMMANDS))
    lines = (f"  {command:{width}}  {summary}" for command, summary in COMMANDS.items())
    return "\n".join(["usage: python -m simulator COMMAND ...   (COMMAND --help lists its options)", "", *lines])


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has closed the pipe. Without this, Python prints an error when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)
