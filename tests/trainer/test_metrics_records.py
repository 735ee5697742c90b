"""Progress for other programs, and experiment trackers: with stand-ins for the packages wandb and mlflow.

Whole runs with the real wandb are in test_run_wandb.
"""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.launch import SMALL_LLAMA, outcome
from trainer.__main__ import main
from trainer.config.errors import ConfigError
from trainer.config.load import load
from trainer.metrics import progress_file, trackers
from trainer.metrics.progress_file import ProgressFile
from trainer.metrics.recorder import Recorder

# Records every call as a line of JSON; `REFUSE` makes an online start fail as it does without a key.
WANDB = """
import json, os
calls = open(os.environ["CALLS"], "a", buffering=1)
class Settings:
    def __init__(self, **settings): pass
class Run:
    url = "https://wandb.example/run"
    summary = {}
    def log(self, values):
        if os.environ.get("FAIL_AT") == str(values["step"]): raise ConnectionError("gone")
        print(json.dumps(values), file=calls)
    def define_metric(self, name, step_metric): pass
    def finish(self, exit_code): print(json.dumps({"exit_code": exit_code, **self.summary}), file=calls)
def teardown(): pass
def init(mode, **options):
    if mode == "online" and "REFUSE" in os.environ: raise ValueError("No API key configured.")
    values = {key: options[key] for key in ("project", "name", "id", "group", "resume")}
    print(json.dumps({"mode": mode, **values}), file=calls)
    return Run()
"""
MLFLOW = {
    "__init__.py": """
import json, os
from mlflow.exceptions import MlflowException
calls = open(os.environ["CALLS"], "a", buffering=1)
class Info: run_id = "id-1"
class Created: info = Info
class MlflowClient:
    def __init__(self, tracking_uri):
        self.uri = tracking_uri
    def get_experiment_by_name(self, name):
        if self.uri.startswith("http"): raise MlflowException("no route to host")
    def create_experiment(self, name):
        return name
    def create_run(self, experiment_id, run_name):
        print(json.dumps({"created": [self.uri, experiment_id, run_name]}), file=calls)
        return Created
    def update_run(self, run_id, status):
        if self.uri.startswith("http"): raise MlflowException("no route to host")
        print(json.dumps({"continued": run_id}), file=calls)
    def log_batch(self, run_id, metrics=(), params=()):
        print(json.dumps({"run": run_id, "metrics": metrics, "params": dict(params)}), file=calls)
    def set_tag(self, run_id, name, value): pass
    def set_terminated(self, run_id, status): print(json.dumps({"status": status}), file=calls)
""",
    "entities.py": """
def Metric(key, value, time_ms, step): return [key, value, step]
def Param(key, value): return key, value
""",
    "exceptions.py": "class MlflowException(Exception): pass",
}
NOT_SENT = "metrics/ in the run folder has all of it; without a network, set metrics.stuck to offline"
TINY = ("tiny-mlp", "steps=6", "metrics.every=2", "metrics.peak_tflops=1", "run.device=cpu", "metrics.project=tests")


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install the stand-ins and return the file of their calls."""
    hide_trackers(monkeypatch)
    packages = tmp_path / "packages"
    (packages / "mlflow").mkdir(parents=True)
    (packages / "wandb.py").write_text(WANDB)
    for name, text in MLFLOW.items():
        (packages / "mlflow" / name).write_text(text)
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    for name in ("WANDB_API_KEY", "MLFLOW_TRACKING_URI", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path / "calls"
    for name in list_trackers():
        del sys.modules[name]


def hide_trackers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Python forget the trackers that it has imported; another test may have imported the real wandb."""
    for name in list_trackers():
        monkeypatch.delitem(sys.modules, name)


def list_trackers() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in ("wandb", "mlflow")]


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def make_recorder(folder: Path, stream: io.StringIO, *settings: str) -> Recorder:
    config = load("tiny-mlp", [*TINY[1:], *settings])
    folder.mkdir(exist_ok=True)
    recorder = Recorder(folder, 0, config, stream=stream)
    recorder.resume(0, 1)
    recorder.open_trackers(config)
    return recorder


def test_a_run_is_recorded_by_both_trackers_and_a_restart_adds_to_it(tmp_path: Path, calls: Path) -> None:
    folder = tmp_path / "run"
    arguments = [*TINY, f"run.folder={folder}", "metrics.wandb=offline", "metrics.mlflow=offline"]
    assert main(arguments) == 0
    started, *logged, ended = [call for call in read(calls) if "mode" in call or "loss" in call or "exit_code" in call]
    assert (started["mode"], started["project"], started["name"]) == ("offline", "tests", "tiny-mlp")
    assert [call["step"] for call in logged] == [2, 4, 6]
    assert {"loss", "lr", "samples_per_s", "grad_norm"} <= set(logged[0])
    assert ended == {"exit_code": 0, "outcome": "finished"}
    created, *parts = [call for call in read(calls) if "created" in call or call.get("params")]
    assert created["created"][1:] == ["tests", "tiny-mlp"]
    # MLflow takes at most 100 settings at a time.
    assert all(len(part["params"]) <= 100 for part in parts)
    parameters = {name: value for part in parts for name, value in part["params"].items()}
    assert {"name", "metrics.peak_tflops"} <= set(parameters), "the first and the last settings are there"
    assert parameters["batch.micro"].isdigit(), "the settings are the resolved ones"
    steps = [call["metrics"][0][2] for call in read(calls) if call.get("metrics")]
    assert steps == [2, 4, 6]
    assert {"status": "FINISHED"} in read(calls)

    assert main([*arguments, "steps=8"]) == 0
    again = [call for call in read(calls) if "mode" in call][-1]
    assert (again["group"], again["resume"]) == (started["group"], None)
    assert again["id"] != started["id"], "an upload would replace the first start"
    assert {"continued": "id-1"} in read(calls)
    assert [call["step"] for call in read(calls) if "loss" in call] == [2, 4, 6, 8]


def test_a_restart_continues_the_same_run_online(tmp_path: Path, calls: Path) -> None:
    for _ in range(2):
        recorder = make_recorder(tmp_path / "run", io.StringIO(), "metrics.wandb=online")
        recorder.end("requeue", "time limit", 2)
        recorder.close()
    first, second = (call for call in read(calls) if "mode" in call)
    assert first == second
    # The same path on another machine, or after the folder was deleted, is another run.
    (tmp_path / "run" / "wandb-run").unlink()
    recorder = make_recorder(tmp_path / "run", io.StringIO(), "metrics.wandb=online")
    recorder.close()
    assert read(calls)[-2]["id"] != first["id"]
    assert (first["mode"], first["resume"], first["group"]) == ("online", "allow", None)


def test_without_a_key_or_a_network_a_tracker_records_offline_and_says_so_once(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFUSE", "1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000")
    stream = io.StringIO()
    recorder = make_recorder(tmp_path / "run", stream, "metrics.wandb=online", "metrics.mlflow=online")
    for step in (1, 2):
        recorder.record(step, {"loss": 1.0})
    recorder.end("finished", "done", 2)
    recorder.close()
    text = stream.getvalue()
    assert text.count("metrics.wandb: cannot reach Weights & Biases (ValueError: No API key configured.); ") == 1
    assert text.count("metrics.mlflow: cannot reach http://tracker:5000 (no route to host); recording in the run") == 1
    assert "upload with `wandb sync " in text
    assert [call["mode"] for call in read(calls) if "mode" in call] == ["offline"]
    assert [call["step"] for call in read(calls) if "loss" in call] == [1, 2]
    assert len([call for call in read(calls) if call.get("metrics")]) == 2


def test_mlflow_without_a_server_records_in_the_folder(tmp_path: Path, calls: Path) -> None:
    stream = io.StringIO()
    recorder = make_recorder(tmp_path / "run", stream, "metrics.mlflow=online")
    recorder.end("broken", "", 0)
    recorder.close()
    assert "metrics.mlflow: MLFLOW_TRACKING_URI is not set; recording in the run's folder" in stream.getvalue()
    assert read(calls)[-1] == {"status": "FAILED"}


def test_a_tracker_that_fails_later_is_reported_once_and_the_run_goes_on(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL_AT", "2")
    stream = io.StringIO()
    recorder = make_recorder(tmp_path / "run", stream, "metrics.wandb=online")
    for step in range(1, 9):
        recorder.record(step, {"loss": 1.0})
    recorder.close()
    assert stream.getvalue().count("metrics.wandb: ConnectionError: gone; training continues without it") == 1
    assert "step 8/6" in stream.getvalue()
    assert [call["step"] for call in read(calls) if "loss" in call] == [1]


class StuckTracker:
    """A tracker whose network does not answer."""

    setting = "metrics.stuck"

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.gave_up = False

    def open(self) -> str:
        self.gave_up = not self.answered.wait(600)
        return "recording"

    def log(self, step: int, values: Any) -> None:
        pass

    def close(self, outcome: str) -> None:
        pass


def test_a_tracker_that_is_stuck_delays_neither_a_step_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "_CLOSE_TIMEOUT_S", 0.1)
    messages: list[str] = []
    stuck = StuckTracker()
    tracker = trackers.BackgroundTracker(stuck, messages.append)
    for step in range(trackers._MAX_WAITING + 5):
        tracker.log(step, {"loss": 1.0, "source": "text is left out"})
    trackers.close_trackers([tracker], "finished")
    assert not stuck.gave_up
    assert messages == [
        "metrics.stuck: the tracker is too slow; it misses steps from 1000 on",
        f"metrics.stuck: not everything was sent within 0.1 s; {NOT_SENT}",
    ]
    stuck.answered.set()


def test_trackers_share_the_time_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    # The quick one ends within this time, also on a busy machine.
    monkeypatch.setattr(trackers, "_CLOSE_TIMEOUT_S", 2.0)
    messages: list[str] = []
    stuck, quick = StuckTracker(), StuckTracker()
    quick.setting = "metrics.quick"
    quick.answered.set()
    deadlines: list[float] = []
    wait = trackers.BackgroundTracker.wait

    def record(tracker: trackers.BackgroundTracker, deadline: float) -> None:
        deadlines.append(deadline)
        wait(tracker, deadline)

    monkeypatch.setattr(trackers.BackgroundTracker, "wait", record)
    all_three = [trackers.BackgroundTracker(tracker, messages.append) for tracker in (stuck, stuck, quick)]
    trackers.close_trackers(all_three, "finished")
    assert len(deadlines) == 3
    assert len(set(deadlines)) == 1, "each of two stuck trackers would take 2 s"
    late = f"metrics.stuck: not everything was sent within 2 s; {NOT_SENT}"
    assert messages == ["metrics.quick: recording", late, late]
    stuck.answered.set()


def test_a_tracker_without_its_package_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_trackers(monkeypatch)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if not Path(folder, "wandb").exists()])
    assert main([*TINY, f"run.folder={tmp_path / 'run'}", "metrics.wandb=offline", "metrics.mlflow=online"]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert lines == [
        "trainer: 2 settings need fixing",
        "metrics.wandb: offline, but the package wandb is not installed; "
        "`pip install wandb` (on a cluster: docs/trainer.md#measurement), or use none",
        "metrics.mlflow: online, but the package mlflow is not installed; "
        "`pip install mlflow` (on a cluster: docs/trainer.md#measurement), or use none",
    ]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("metrics.wandb=maybe", "metrics.wandb: 'maybe' is not allowed; allowed: none, online, offline"),
        ("metrics.mlflow=true", "metrics.mlflow: True is not allowed; allowed: none, online, offline"),
        ("metrics.project=''", "metrics.project: '' is not a project name; use 1 to 128 characters other than"),
        ("metrics.project=a/b", "metrics.project: 'a/b' is not a project name; use 1 to 128 characters other than"),
    ],
)
def test_settings_of_trackers_are_checked(setting: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load("tiny-mlp", [setting])
    assert problem in str(refused.value)


def test_progress_is_a_file_for_other_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setattr(progress_file.time, "time", lambda: 1_790_000_000.0)
    monkeypatch.setattr(progress_file, "_MIN_INTERVAL_S", 0.0)
    file = ProgressFile(tmp_path, "mine", 100)
    file.start(20)
    fixed = {"name": "mine", "steps": 100, "job": "4711", "updated_at": "2026-09-21T14:13:20Z"}
    unknown = {"seconds_left": None, "ends_at": None}
    assert json.loads((tmp_path / "progress.json").read_text()) == {**fixed, "state": "training", "step": 20, **unknown}
    file.update(30, {"loss": float("nan"), "step_s": 0.5, "lr": 1.0}, 61.0)
    measured = {"loss": "nan", "step_s": 0.5}
    expected = {**fixed, "state": "training", "step": 30, **measured}
    expected |= {"seconds_left": 61.0, "ends_at": "2026-09-21T14:14:21Z"}
    assert json.loads((tmp_path / "progress.json").read_text()) == expected
    file.end(31, "stopped", "stop requested")
    ended = {"state": "ended", "step": 31, "outcome": "stopped", "reason": "stop requested"}
    assert json.loads((tmp_path / "progress.json").read_text()) == {**fixed, **ended, **measured, **unknown}
    assert os.listdir(tmp_path) == ["progress.json"]


def test_progress_is_written_at_most_once_a_second(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path, "mine", 100)
    file.start(0)
    for step in range(1, 50):
        file.update(step, {}, None)
    assert json.loads((tmp_path / "progress.json").read_text())["step"] == 0


def test_a_run_writes_its_progress(tmp_path: Path) -> None:
    assert main([*SMALL_LLAMA, "steps=3", f"run.folder={tmp_path}"]) == 0
    progress = json.loads((tmp_path / "progress.json").read_text())
    assert (progress["state"], progress["outcome"], progress["step"], progress["steps"]) == ("ended", "finished", 3, 3)
    assert progress["tokens_per_s"] > 0
    assert outcome(tmp_path)["outcome"] == "finished"
