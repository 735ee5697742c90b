"""`python -m trainer profile RUN [--steps N]`: ask a running job for a trace of its next steps."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from trainer.command_name import name_command
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.life.trace_request import MAX_STEPS, TraceRequest, write_request
from trainer.metrics.progress_file import FILE_NAME


def main(argv: list[str]) -> int:
    """Run the command and return its exit status."""
    options = _parse(argv)
    try:
        _check(options)
        write_request(options.run, TraceRequest(options.steps, options.ranks))
    except (ConfigError, OSError) as error:
        print(f"profile: {error}", file=sys.stderr)
        return 2
    print(f"requested: the run traces its next {options.steps} steps and writes them to {options.run / 'traces'}")
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        name_command("profile"),
        description="Ask a running job for a trace of its next steps, with torch's profiler and, on a GPU, its memory.",
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of the run")
    parser.add_argument("--steps", type=int, default=3, help=f"steps to trace, 1 to {MAX_STEPS} (default: 3)")
    parser.add_argument("--ranks", type=int, default=1, help="ranks that write a trace, from rank 0 on (default: 1)")
    return parser.parse_args(argv)


def _check(options: argparse.Namespace) -> None:
    problems = []
    if not 1 <= options.steps <= MAX_STEPS:
        problems.append(ConfigProblem("--steps", f"{options.steps} is not allowed", f"use 1 to {MAX_STEPS}"))
    if options.ranks < 1:
        problems.append(ConfigProblem("--ranks", f"{options.ranks} is not allowed", "use 1 or more"))
    file = options.run / FILE_NAME
    if not file.is_file():
        problems.append(
            ConfigProblem(str(options.run), "is not the folder of a run", "give a folder such as runs/NAME")
        )
    elif (progress := json.loads(file.read_text(encoding="utf-8")))["state"] == "ended":
        message = f"the run has ended ({progress['outcome']} at step {progress['step']})"
        problems.append(ConfigProblem(str(options.run), message, "start it again, then ask for a trace"))
    if problems:
        raise ConfigError(problems)
