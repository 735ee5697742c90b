"""The gate's compile check: it names a missing compiler or header, is bounded in time, and runs compiled code."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from trainer.compile_check import CompileError, check_compile, find_obstacle


@pytest.fixture
def include(tmp_path: Path) -> Path:
    (tmp_path / "Python.h").touch()
    return tmp_path


def test_a_compiled_function_is_run_and_compared() -> None:
    check_compile("cpu", 6000, backend="aot_eager")


def test_a_node_without_a_compiler_is_reported(tmp_path: Path, include: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    message = "torch.compile needs a C compiler, but gcc and clang are not installed; install g++"
    assert find_obstacle(include) == message
    with pytest.raises(CompileError, match="needs a C compiler"):
        check_compile("cpu", 600)


def test_a_node_without_headers_is_reported(tmp_path: Path, include: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/usr/bin/cc")
    assert find_obstacle(include) == ""
    missing = tmp_path / "missing"
    assert f"{missing}/Python.h does not exist" in find_obstacle(missing)


def test_a_compiler_that_hangs_is_stopped() -> None:
    def hang(*_: Any) -> Any:
        time.sleep(600)

    before, began = signal.getsignal(signal.SIGALRM), time.monotonic()
    with pytest.raises(CompileError, match=r"took longer than 0\.3 s"):
        check_compile("cpu", 0.3, backend=hang)
    assert time.monotonic() - began < 300
    assert signal.getsignal(signal.SIGALRM) == before


def test_the_cause_of_a_compilers_error_is_named() -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("fatal error: Python.h\nmore")

    with pytest.raises(CompileError, match=r"^torch\.compile failed: RuntimeError: fatal error: Python\.h$"):
        check_compile("cpu", 600, backend=fail)


def test_a_wrong_result_is_reported() -> None:
    def break_graph(graph: Any, _: Any) -> Any:
        def run(*inputs: Any) -> Any:
            return [output * 2 for output in graph.forward(*inputs)]

        return run

    with pytest.raises(CompileError, match="AssertionError: Tensor-likes are not close"):
        check_compile("cpu", 600, backend=break_graph)
