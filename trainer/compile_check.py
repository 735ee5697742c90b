"""Check that torch.compile works on this node: compiler and headers are installed, and a compiled function runs."""

from __future__ import annotations

import os
import shutil
import signal
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

COMPILERS = ("gcc", "clang")


class CompileError(Exception):
    """Raised if torch.compile does not work here; the message is one line with the cause."""


class _TimeLimitError(BaseException):
    """The end of the time limit; not an Exception, which torch would catch and wrap."""


def check_compile(device: str, timeout_s: float, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile a small function, run it, and compare with eager mode; raise CompileError with the cause."""
    if backend == "inductor" and (obstacle := find_obstacle(Path(sysconfig.get_path("include")))):
        raise CompileError(obstacle)
    try:
        with _fresh_caches(), _time_limit(timeout_s):
            _compile_and_run(device, backend)
    except _TimeLimitError:
        raise CompileError(f"torch.compile of a small function took longer than {timeout_s:g} s") from None
    except Exception as error:  # compilers raise errors of many types
        raise CompileError(f"torch.compile failed: {_describe(error)}") from error


def find_obstacle(include: Path) -> str:
    """Return what Triton's C code lacks to compile on this node; empty if nothing. `include` has Python's headers."""
    if not os.environ.get("CC") and not any(map(shutil.which, COMPILERS)):
        return f"torch.compile needs a C compiler, but {' and '.join(COMPILERS)} are not installed; install g++"
    if not (include / "Python.h").exists():
        return f"torch.compile needs Python's headers, but {include}/Python.h does not exist; install them"
    return ""


def _compile_and_run(device: str, backend: str | Callable[..., Any]) -> None:
    def function(values: Any) -> Any:
        return torch.nn.functional.gelu(values) * 2 + 1

    values = torch.linspace(-1, 1, 256, device=device)
    compiled: Any = torch.compile(function, backend=backend)
    torch.testing.assert_close(compiled(values), function(values))


@contextmanager
def _fresh_caches() -> Iterator[None]:
    """Keep compiled code out of the shared home: a node would load what another has compiled, and prove nothing."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            "TRITON_CACHE_DIR": f"{folder}/triton",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
            # Compile in this process: starting a pool of workers takes longer than the work.
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        yield


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise _TimeLimitError in the block after this many seconds; only in the main thread."""

    def stop(*_: object) -> None:
        raise _TimeLimitError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _describe(error: BaseException) -> str:
    """Return type and first line of the first error: torch wraps a compiler's error in its own."""
    while inner := getattr(error, "inner_exception", None) or error.__cause__:
        error = inner
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
