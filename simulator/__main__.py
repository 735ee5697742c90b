"""`python -m simulator COMMAND ...`: run a command; each is a module that is imported only when it is used."""

from __future__ import annotations

import sys
from importlib import import_module

COMMANDS: dict[str, str] = {
    "plan": "choose machines and layout of a run by time and cost",
    "auto": "choose the layout of a job with strategy auto for the nodes of a stack",
    "predict": "predict a run: step, memory, cost; or a CSV file of runs or collectives",
    "evaluate": "show the model's errors on a CSV file of measured rows",
    "emulate": "run a job of up to 1,024 ranks in one process with a modelled clock (needs torch)",
    "collectives": "predict time and bus bandwidth of a collective, and NCCL's algorithm",
    "calibrate": "measure this machine or cluster and write a profile for predictions (needs torch)",
    "report": "compare runs of the trainer with their predictions, as a page with charts",
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
    return "\n".join(["usage: python -m simulator COMMAND ...   (COMMAND --help: its options)", "", *lines])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
