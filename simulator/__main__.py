"""`python -m simulator COMMAND ...`: each command is a module that is read when it is asked for."""

from __future__ import annotations

import sys
from importlib import import_module

COMMANDS: dict[str, str] = {
    "plan": "machines, layout, time and money of a run, as a front to choose from",
    "auto": "the trainer's words with strategy auto settled for the nodes of a stack",
    "predict": "one run of the trainer: step, memory, money; or a CSV file of runs or collectives",
    "evaluate": "errors of the model on a CSV file of measured rows, by source",
    "emulate": "a job of up to 1,024 ranks in this process: real numbers, modelled clock (needs torch)",
    "collectives": "time and bus bandwidth of a collective on machines of a type, and NCCL's way of it",
    "calibrate": "measures this machine or cluster: a profile that predictions go by (needs torch)",
    "report": "runs of the trainer beside what was predicted of them, as a page and pictures",
    "trace": "the events of one step, for a trace viewer or as a picture",
}
"""What each does, in a line; `simulator.commands.NAME` has `main(words) -> exit status`."""


def main(words: list[str]) -> int:
    name = words[0] if words else "--help"
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name not in COMMANDS:
        print(f"simulator: command: {name!r}; allowed: {', '.join(COMMANDS)}; choose one of them", file=sys.stderr)
        return 2
    status: int = import_module(f"simulator.commands.{name}").main(words[1:])
    return status


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = (f"  {command:{width}}  {does}" for command, does in COMMANDS.items())
    return "\n".join(["usage: python -m simulator COMMAND ...   (COMMAND --help: its options)", "", *lines])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
