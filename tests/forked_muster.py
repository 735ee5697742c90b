"""`muster` in a fork of a process that has its modules loaded: most commands are done sooner than Python is started.

Each command still has a process of its own, with its own environment, working folder, output and exit code.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
# What the commands import when they need it; with what these modules import in turn.
MODULES = (
    *("boto3", "docker", "pulumi"),
    *(f"muster.commands.{name}" for name in ("check", "cost", "demo", "status", "submit", "teardown", "up")),
    *(f"infra.targets.{name}.target" for name in ("aws", "azure", "hosts", "local", "nebius")),
    "infra.targets.local.images",
)


def run_muster(*arguments: str, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `muster` with these arguments in a folder and an environment, without input."""
    server = _server()
    assert server.stdin
    assert server.stdout
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        request = {"arguments": arguments, "cwd": str(cwd), "env": dict(env), "out": str(out), "err": str(err)}
        server.stdin.write(f"{json.dumps(request)}\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(["muster", *arguments], code, out.read_text(), err.read_text())


@cache
def _server() -> subprocess.Popen[str]:
    """Start the process to fork from; it ends when its input does."""
    command = [sys.executable, "-c", "from tests.forked_muster import serve; serve()"]
    server = subprocess.Popen(command, cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(server.communicate)
    return server


def serve() -> None:
    """Load the modules of the commands, then run each command that standard input requests in a fork."""
    import muster.cli  # noqa: PLC0415  # only this process needs it, so that its forks have it

    for name in MODULES:
        importlib.import_module(name)
    # Otherwise the first collection in each fork would write to all objects, and so copy their memory.
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(**json.loads(line))
            # Exits, or ends the fork with a traceback as it would end `muster`.
            muster.cli.main()
            return
        _, status_ = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status_), flush=True)


def _become(arguments: list[str], cwd: str, env: dict[str, str], out: str, err: str) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["muster", *arguments]
    for descriptor, path, mode in ((0, os.devnull, os.O_RDONLY), (1, out, os.O_WRONLY), (2, err, os.O_WRONLY)):
        os.dup2(os.open(path, mode | os.O_CREAT), descriptor)
