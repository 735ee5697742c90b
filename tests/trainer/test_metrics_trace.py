"""A trace of a running job: the request, its checks, and the traces of two ranks."""

from __future__ import annotations

import gzip
import json
import re
import tempfile
import threading
from pathlib import Path

import pytest
import torch

from tests.trainer.launch import SMALL_LLAMA, Launched, forked, wait_for_step
from trainer.__main__ import main
from trainer.life.outcome import Code
from trainer.life.trace_request import TraceRequest, parse_request
from trainer.metrics import tracer as tracer_module
from trainer.metrics.tracer import Tracer

STEPS = 2


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("3", TraceRequest(3, 1)),
        ("10 8\n", TraceRequest(10, 8)),
        ("", None),
        ("0", None),
        ("11", None),
        ("3 0", None),
        ("3 1 1", None),
        ("three", None),
        ("-1", None),
    ],
)
def test_a_request_is_a_number_of_steps_and_of_ranks(text: str, request_: TraceRequest | None) -> None:
    assert parse_request(text) == request_


@pytest.mark.parametrize(
    ("options", "progress", "problem"),
    [
        (["--steps=0"], '{"state": "training"}', "--steps: 0 is not allowed; use 1 to 10"),
        (["--steps=11"], '{"state": "training"}', "--steps: 11 is not allowed; use 1 to 10"),
        (["--ranks=0"], '{"state": "training"}', "--ranks: 0 is not allowed; use 1 or more"),
        ([], '{"state": "ended", "outcome": "stopped", "step": 7}', "the run has ended (stopped at step 7); start it"),
        ([], "", "is not the folder of a run; give a folder such as runs/NAME"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], progress: str, problem: str
) -> None:
    if progress:
        (tmp_path / "progress.json").write_text(progress)
    assert main(["profile", str(tmp_path), *options]) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "profile").exists()


def test_ranks_that_wait_for_a_trace_are_not_hung(tmp_path: Path) -> None:
    """The step after a trace waits until it is written, on every rank."""
    tracer = Tracer(tmp_path, 1, torch.device("cpu"), print)
    tracer.begin(TraceRequest(2, 1), 5)
    assert not tracer.is_active
    assert [step for step in range(3, 10) if tracer.find_limit_s(step)] == [6, 7]


class FullDisk:
    """A profile that cannot be written."""

    def stop(self) -> None:
        pass

    def export_chrome_trace(self, _path: str) -> None:
        raise OSError(28, "No space left on device")


def test_a_trace_that_cannot_be_written_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    messages: list[str] = []
    tracer = Tracer(tmp_path / "run", 0, torch.device("cpu"), messages.append)
    tracer._profile = FullDisk()
    tracer.close()
    assert "No space left on device; training continues" in messages[0]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_end_of_a_run_does_not_wait_long_for_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer_module, "_COMPRESS_TIMEOUT_S", 0.1)
    messages: list[str] = []
    tracer = Tracer(tmp_path, 0, torch.device("cpu"), messages.append)
    written = threading.Event()
    stuck = threading.Thread(target=written.wait, daemon=True)
    stuck.start()
    tracer._compressions.append(stuck)
    tracer.close()
    assert messages == [f"a trace was not written to {tmp_path / 'traces'} within 0.1 s and is lost"]
    written.set()


def test_all_ranks_trace_the_same_steps_of_a_running_job(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = [*SMALL_LLAMA, "steps=1000000", "checkpoint.every=0", "parallel.strategy=ddp", f"run.folder={folder}"]
    # The trainer's own profiles must not get in the way: torch allows only one profiler at a time.
    with forked(2, [*arguments, "metrics.profile_every=2"], tmp_path) as run:
        wait_for_step(run, folder, 3)
        (folder / "profile").write_text("many")
        run.until(lambda: "'many' is not a number of steps; use 1 to 10" in run.output, "a message")
        assert main(["profile", str(folder), f"--steps={STEPS}", "--ranks=2"]) == 0
        run.until(lambda: len(list(folder.glob("traces/*/rank-*.json.gz"))) == 2, "two traces")
        traced = [traced_steps(file) for file in sorted(folder.glob("traces/*/rank-*.json.gz"))]
        stop(run, folder)
    first = traced[0][0]
    assert traced == [[first, first + 1]] * 2
    assert [path.name for path in (folder / "traces").iterdir()] == [f"step-{first:08d}"]
    assert f"trace of steps {first} to {first + 1} in {folder}/traces/step-{first:08d}" in run.output
    assert not (folder / "profile").exists()


def traced_steps(file: Path) -> list[int]:
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    assert any(event["name"].startswith("aten::") for event in events)
    names = {event["name"] for event in events}
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"step (\d+)", name)))


def stop(run: Launched, folder: Path) -> None:
    (folder / "stop").touch()
    assert run.wait() == Code.STOPPED, run.output
