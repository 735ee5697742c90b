"""Invalid input ends a run with status 2 and a line that says how to fix it, before any GPU time is spent."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trainer.launch import REPO, SMALL_LLAMA, checkpoint_steps, events, forked, outcome
from trainer import host
from trainer.__main__ import main
from trainer.api import Trainer
from trainer.checkpoint.run_lock import LOCK_FOLDER
from trainer.config.errors import ConfigError
from trainer.config.schema import CompileConfig
from trainer.data.prepare import main as prepare
from trainer.life.outcome import FILE_VARIABLE, Code
from trainer.parallel.compile import check_backend

FOUR_RANKS = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "RANK": "0"}
INVALID_SETTINGS = {
    "unknown key": (
        ["tiny-llama", "optimizer.weight_dekay=1", "stepz=4"],
        {},
        [
            "stepz: no such setting; did you mean steps?",
            "optimizer.weight_dekay: no such setting; did you mean optimizer.weight_decay?",
        ],
    ),
    "wrong type": (
        ["tiny-llama", "model.layers=two"],
        {},
        ["model.layers: 'two' is not allowed; allowed: whole number"],
    ),
    "unknown preset": (
        ["tiny-lama"],
        {},
        ["tiny-lama: neither a preset nor a file; did you mean the preset tiny-llama?"],
    ),
    "no data": (
        ["tiny-llama", "data.kind=tokens"],
        {},
        [
            "data.path: is empty, but tokens are read from a folder; "
            "set data.path (make shards with `python -m trainer prepare`)"
        ],
    ),
    "batch not divisible": (
        ["tiny-llama", "batch.size=8"],
        {"WORLD_SIZE": "3", "RANK": "0"},
        [
            "batch.size: 8 is not divisible by 3 data-parallel ranks; "
            "use 6 or 9, or a number of data-parallel ranks out of 1, 2, 4, 8"
        ],
    ),
    "mesh too large": (
        ["tiny-llama", "parallel.tensor=2", "parallel.pipeline=4"],
        FOUR_RANKS,
        [
            "parallel: pipeline 4 x tensor 2 = 8 does not divide 4 ranks; "
            "use 8 ranks, or a pipeline x tensor out of 1, 2, 4"
        ],
    ),
    "shards do not fit": (
        ["tiny-llama", "parallel.strategy=hsdp", "parallel.shard=3"],
        FOUR_RANKS,
        ["parallel.shard: 3 does not divide the 4 data-parallel ranks; use one of 1, 2, 4"],
    ),
    "single on four ranks": (
        ["tiny-llama", "parallel.strategy=single"],
        FOUR_RANKS,
        [
            "parallel.strategy: single uses pipeline 1 x tensor 1 ranks, but there are 4; "
            "set parallel.strategy to ddp, fsdp or hsdp, or start 1"
        ],
    ),
}


@pytest.mark.parametrize("case", INVALID_SETTINGS)
def test_settings_are_checked_before_torch_is_loaded(case: str, tmp_path: Path) -> None:
    arguments, variables, expected = INVALID_SETTINGS[case]
    status, lines = without_torch(arguments, variables, tmp_path)
    summary = "1 setting needs fixing" if len(expected) == 1 else f"{len(expected)} settings need fixing"
    assert (status, lines) == (Code.BAD_INPUT, [f"trainer: {summary}", *expected])
    assert list((tmp_path / "here").iterdir()) == []


def test_only_rank_0_prints_the_problems(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Other ranks wait until torchrun ends them, or for the outcome file of a job."""
    monkeypatch.setattr("trainer.__main__.RANK_0_TIMEOUT_S", 0.2)
    for name, value in {"WORLD_SIZE": "3", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    began = time.monotonic()
    assert main(["tiny-llama", "batch.size=8"]) == Code.BAD_INPUT
    assert time.monotonic() - began > 0.2
    assert capfd.readouterr() == ("", "")


def test_a_job_script_gets_the_reason_in_the_outcome_file(tmp_path: Path) -> None:
    file = tmp_path / "outcome.json"
    status, _ = without_torch(["tiny-lama"], {FILE_VARIABLE: str(file)}, tmp_path)
    assert status == 0  # or torchrun would start the ranks again
    assert outcome(tmp_path)["outcome"] == "bad_input"
    assert outcome(tmp_path)["reason"].startswith("tiny-lama: neither a preset nor a file")


def test_missing_data_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    gone, run = tmp_path / "gone", tmp_path / "run"
    status = main([*SMALL_LLAMA, "data.kind=tokens", f"data.path={gone}", f"run.folder={run}"])
    assert status == Code.BAD_INPUT
    make = f"make it: python -m trainer prepare INPUT... --out {gone}"
    assert f"data.path: there is no folder {gone}; {make}" in capfd.readouterr().err.splitlines()
    assert not run.exists()


def test_shards_with_a_larger_vocabulary_are_rejected(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text, shards = tmp_path / "text.txt", tmp_path / "shards"
    text.write_text("words and words\n" * 100)
    assert prepare([str(text), "--out", str(shards), "--tokenizer", "bytes", "--workers", "1"]) == 0
    arguments = [*SMALL_LLAMA, "data.kind=tokens", f"data.path={shards}", f"run.folder={tmp_path / 'run'}"]
    capfd.readouterr()
    assert main([*arguments, "model.vocab_size=128"]) == Code.BAD_INPUT
    assert capfd.readouterr().err.splitlines() == [
        "trainer: 1 setting needs fixing",
        f"data.path: {shards} was made with the tokenizer bytes, whose vocabulary of 257 is larger than the model's "
        "128; "
        "set model.vocab_size to 257 or more, or prepare the text with the model's tokenizer",
    ]
    assert main([*arguments, "model.vocab_size=257", "steps=1"]) == Code.FINISHED


def test_a_checkpoint_of_another_model_is_rejected(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    arguments = [*SMALL_LLAMA, f"run.folder={run}"]
    assert main([*arguments, "steps=2"]) == Code.FINISHED
    capfd.readouterr()
    assert main([*arguments, "steps=4", "model.ffn=96"]) == Code.BAD_INPUT
    printed = capfd.readouterr().err.splitlines()
    assert printed[1].startswith(
        f"model: {run}/checkpoints/step-00000002 is a checkpoint of another model: "
        "shapes differ: model.layers.0.ffn.gate.weight is F32 [64, 32] there and F32 [96, 32] here, "
    )
    assert printed[1].endswith("; use the settings stored in it, or another run.folder")
    assert checkpoint_steps(run) == [2]


def test_a_missing_checkpoint_is_reported_if_resume_is_must(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main([*SMALL_LLAMA, f"run.folder={run}", "checkpoint.resume=must"]) == Code.BAD_INPUT
    expected = f"checkpoint.resume: must, but {run}/checkpoints has no checkpoint; use auto"
    assert expected in capfd.readouterr().err.splitlines()


def test_a_refused_start_leaves_no_files(tmp_path: Path) -> None:
    """These problems are detected late, after the ranks have joined and the model is built."""
    run = tmp_path / "runs" / "new"
    for override in ("checkpoint.resume=must", f"checkpoint.initial={tmp_path / 'gone'}"):
        assert main([*SMALL_LLAMA, f"run.folder={run}", override]) == Code.BAD_INPUT
        assert list(tmp_path.iterdir()) == []


def test_an_unknown_backend_of_the_compiler_is_refused_at_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main([*SMALL_LLAMA, f"run.folder={run}", "compile.mode=blocks", "compile.backend=induktor"]) == 2
    error = capfd.readouterr().err
    assert "compile.backend: 'induktor' is not a backend of torch.compile here; allowed: " in error
    assert "inductor" in error
    assert not run.exists()
    with pytest.raises(ConfigError, match=r"compile\.backend: 'induktor'"):
        Trainer(torch.nn.Linear(2, 2), compile=CompileConfig(mode="whole", backend="induktor"), folder=run)
    check_backend(CompileConfig(mode="whole", backend="aot_eager"))


def test_a_refused_start_of_two_ranks_leaves_no_files(tmp_path: Path) -> None:
    arguments = [
        *SMALL_LLAMA,
        "parallel.strategy=fsdp",
        "checkpoint.resume=must",
        f"run.folder={tmp_path / 'runs' / 'new'}",
    ]
    with forked(2, arguments, tmp_path / "logs", program="tests.trainer.quick_rank") as run:
        assert run.wait() != 0
    assert "checkpoint.resume: must, but " in run.output
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_a_refused_start_does_not_change_an_earlier_run(tmp_path: Path) -> None:
    arguments = [*SMALL_LLAMA, f"run.folder={tmp_path / 'run'}", "steps=2"]
    assert main(arguments) == Code.FINISHED
    before = list_contents(tmp_path)
    (lock,) = (tmp_path / "run" / LOCK_FOLDER).iterdir()
    free = lock.read_bytes()
    assert main([*arguments, "model.ffn=96", "batch.size=4"]) == Code.BAD_INPUT
    assert list_contents(tmp_path) == before
    # The number of the lock only grows; nobody holds it.
    (lock_now,) = (tmp_path / "run" / LOCK_FOLDER).iterdir()
    assert (lock_now.name > lock.name, lock_now.read_bytes()) == (True, free)


def list_contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and LOCK_FOLDER not in path.parts}


def test_a_refused_start_leaves_an_empty_folder_empty(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert main([*SMALL_LLAMA, f"run.folder={tmp_path / 'run'}", "checkpoint.resume=must"]) == Code.BAD_INPUT
    assert list((tmp_path / "run").iterdir()) == []


def test_a_host_with_too_little_memory_to_stage_a_save_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "available_memory", lambda: 100_000)
    arguments = [*SMALL_LLAMA, f"run.folder={tmp_path / 'run'}", "parallel.strategy=single", "batch.micro=8"]
    problem = (
        rf"checkpoint: staging a save needs 0\.\d MB of memory on {socket.gethostname()}, which has 0\.1 MB available; "
    )

    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(arguments) == Code.BAD_INPUT
    (line,) = capfd.readouterr().err.splitlines()[1:]
    fix = r"give the job more memory \(sbatch --mem=0 requests all memory of a node\), or spread it over more nodes"
    assert re.fullmatch(problem + fix, line)

    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert main(arguments) == Code.BAD_INPUT
    (line,) = capfd.readouterr().err.splitlines()[1:]
    fix = r"give each pod more memory \(muster kubernetes apply --memory\), or use more pods \(--nodes\)"
    assert re.fullmatch(problem + fix, line)
    assert not (tmp_path / "run").exists()


def test_invalid_data_during_training_ends_the_run_and_is_recorded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("cats", "dogs"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(4):
            np.save(tmp_path / "images" / name / f"{number}.npy", np.zeros((32, 32, 3), np.uint8))
    (tmp_path / "images" / "dogs" / "3.npy").write_bytes(b"broken")
    run, before = tmp_path / "run", list_writers()
    arguments = ["data.kind=images", f"data.path={tmp_path / 'images'}", "batch.size=4", "metrics.peak_tflops=1"]
    assert main(["tiny-resnet", *arguments, "run.device=cpu", f"run.folder={run}"]) == Code.BAD_INPUT
    assert outcome(run)["outcome"] == "bad_input"
    assert "dogs/3.npy cannot be decoded" in outcome(run)["reason"]
    assert [event["outcome"] for event in events(run, "ended")] == ["bad_input"]
    assert "dogs/3.npy cannot be decoded" in capfd.readouterr().out
    assert list_writers() == before, "the process that writes checkpoints has ended too"


def list_writers() -> set[str]:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return {pid for pid in children if b"trainer.checkpoint.writer" in Path(f"/proc/{pid}/cmdline").read_bytes()}


def without_torch(arguments: list[str], variables: dict[str, str], tmp_path: Path) -> tuple[int, list[str]]:
    """Run the trainer where importing torch is an error; return its status and output."""
    trap, here = tmp_path / "trap", tmp_path / "here"
    trap.mkdir()
    here.mkdir()
    (trap / "torch.py").write_text("raise ImportError('torch was imported')")
    environment = {**os.environ, "PYTHONPATH": f"{trap}:{REPO}", **variables}
    command = [sys.executable, "-m", "trainer", *arguments]
    completed = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=240)
    return completed.returncode, (completed.stdout + completed.stderr).splitlines()


def test_a_resumed_run_that_does_not_fit_its_ranks_is_requeued(tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "outcome.json"
    (run / "checkpoints" / "step-00000010").mkdir(parents=True)
    variables = {"WORLD_SIZE": "3", "RANK": "0", FILE_VARIABLE: str(file)}
    status, _ = without_torch(["tiny-llama", "batch.size=8", f"run.folder={run}"], variables, tmp_path)
    assert status == 0
    assert outcome(tmp_path)["outcome"] == "requeue"
    assert "8 is not divisible by 3 data-parallel ranks" in outcome(tmp_path)["reason"]
    assert outcome(tmp_path)["step"] == 10


def test_a_run_does_not_overwrite_another(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = [*SMALL_LLAMA, f"run.folder={tmp_path / 'run'}"]
    assert main([*arguments, "steps=4"]) == 0
    before = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert main([*arguments, "steps=2", "checkpoint.resume=never"]) == Code.BAD_INPUT
    assert "checkpoint.resume: never, but" in capfd.readouterr().err
    assert sorted((tmp_path / "run" / "checkpoints").iterdir()) == before


def test_changed_settings_are_reported_on_resume(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = [*SMALL_LLAMA, f"run.folder={tmp_path / 'run'}"]
    assert main([*arguments, "steps=2"]) == 0
    assert main([*arguments, "steps=3", "optimizer.lr=0.001"]) == 0
    output = capfd.readouterr().out
    assert "changed since the checkpoint: steps: 2 -> 3" in output
    assert "-> 0.001" in output
