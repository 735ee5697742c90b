"""The records of a run survive a kill in the middle of a line, a resume, a resize and a full disk."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest

from trainer.config.models import MlpConfig
from trainer.config.schema import Config, MetricsConfig
from trainer.metrics.communication import Event, Profile, Traffic
from trainer.metrics.json_lines import JsonLines, read_lines
from trainer.metrics.progress import Progress, format_count, format_line
from trainer.metrics.recorder import Recorder

CONFIG = Config(name="t", steps=20, model=MlpConfig(), metrics=MetricsConfig(every=1))


def make_recorder(folder: Path, rank: int = 0) -> Recorder:
    return Recorder(folder, rank, CONFIG, stream=io.StringIO())


def write_steps(folder: Path, rank: int, first: int, last: int, loss: float) -> None:
    recorder = make_recorder(folder, rank)
    recorder.resume(first - 1, world_size=2)
    for step in range(first, last + 1):
        recorder.record(step, {"loss": loss, "mfu": None})
    recorder.close()


def read_steps(folder: Path, rank: int) -> list[tuple[int, float]]:
    return [(item["step"], item["loss"]) for item in read_lines(folder / "metrics" / f"rank-{rank:05d}.jsonl")]


def test_a_resumed_run_has_every_step_once(tmp_path: Path):
    write_steps(tmp_path, 0, 1, 5, loss=1.0)
    write_steps(tmp_path, 0, 4, 6, loss=2.0)
    assert read_steps(tmp_path, 0) == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0), (5, 2.0), (6, 2.0)]


def test_an_evaluation_that_a_resumed_run_repeats_is_recorded_once(tmp_path: Path):
    for loss in (1.0, 2.0):
        recorder = make_recorder(tmp_path)
        recorder.resume(4, world_size=1)
        recorder.evaluation(4, {"loss": loss})
        recorder.evaluation(6, {"loss": loss})
        recorder.close()
    lines = read_lines(tmp_path / "metrics" / "evaluation-00000.jsonl")
    assert [(line["step"], line["loss"]) for line in lines] == [(4, 2.0), (6, 2.0)]


def test_lines_of_ranks_that_no_longer_exist_are_removed_too(tmp_path: Path):
    for rank in range(4):
        write_steps(tmp_path, rank, 1, 5, loss=1.0)
    for rank in range(2):
        write_steps(tmp_path, rank, 4, 4, loss=2.0)
    assert [step for step, _ in read_steps(tmp_path, 3)] == [1, 2, 3]
    assert read_steps(tmp_path, 1)[-1] == (4, 2.0)


def test_an_incomplete_line_is_ignored_and_the_next_one_is_complete(tmp_path: Path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2, "lo')
    assert read_lines(path) == [{"step": 1}]
    lines = JsonLines(path)
    lines.append({"step": 2})
    lines.close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_nan_and_infinity_round_trip_as_strict_json(tmp_path: Path):
    lines = JsonLines(tmp_path / "lines.jsonl")
    lines.append({"loss": math.nan, "norm": -math.inf})
    lines.close()
    assert json.loads((tmp_path / "lines.jsonl").read_text()) == {"loss": "nan", "norm": "-inf"}
    (item,) = read_lines(tmp_path / "lines.jsonl")
    assert math.isnan(item["loss"])
    assert item["norm"] == -math.inf


def test_values_that_were_not_measured_are_left_out(tmp_path: Path):
    write_steps(tmp_path, 0, 1, 1, loss=1.0)
    assert "mfu" not in read_lines(tmp_path / "metrics" / "rank-00000.jsonl")[0]


def test_only_rank_0_writes_events_and_a_resume_keeps_them(tmp_path: Path):
    for rank in (0, 1):
        recorder = make_recorder(tmp_path, rank)
        recorder.event("started", world=2)
        recorder.resume(0, world_size=2)
        recorder.event("loaded", step=0)
        recorder.close()
    events = read_lines(tmp_path / "events.jsonl")
    assert [event["event"] for event in events] == ["started", "loaded"]
    assert events[0]["world"] == 2
    assert events[0]["time"] <= events[1]["time"]


def test_a_full_disk_loses_lines_but_does_not_end_the_run(tmp_path: Path):
    stream = io.StringIO()
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "rank-00000.jsonl").symlink_to("/dev/full")
    recorder = Recorder(tmp_path, 0, CONFIG, stream=stream)
    recorder.record(1, {"loss": 1.0})
    recorder.record(2, {"loss": 1.0})
    recorder.close()
    assert stream.getvalue().count("No space left on device") >= 1
    assert "training continues" in stream.getvalue()
    assert "step  2/20" in stream.getvalue()


def test_tensorboard_reads_the_files_and_a_resume_hides_replaced_steps(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write_steps(tmp_path, 0, 1, 5, loss=1.5)
    write_steps(tmp_path, 0, 4, 4, loss=2.5)
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert [(event.step, event.value) for event in board.Scalars("loss")] == [(1, 1.5), (2, 1.5), (3, 1.5), (4, 2.5)]


def test_a_profile_is_written_as_a_line_and_as_curves(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recorder = make_recorder(tmp_path)
    events = [
        Event("", 0, 6_000_000, "compute"),
        Event("all_reduce", 0, 5_000_000, "communication", "world", 8, "node"),
    ]
    traffic = [Traffic("all_reduce", "world", 4, 8.0, 5.0, 2.0, "node")]
    recorder.profile(Profile(3, 10.0, 6.0, 5.0, 2.0, traffic, events))
    recorder.close()
    timeline = json.loads((tmp_path / "metrics" / "timeline-00000.json").read_text())
    assert (timeline["step"], timeline["rank"]) == (3, 0)
    assert [(event["name"], event["end_us"]) for event in timeline["events"]] == [
        ("all_reduce", 5000),
        ("compute", 6000),
    ]
    (written,) = read_lines(tmp_path / "metrics" / "communication-00000.jsonl")
    assert written["traffic"][0] == {
        "collective": "all_reduce",
        "group": "world",
        "count": 4,
        "mb": 8.0,
        "ms": 5.0,
        "exposed_ms": 2.0,
        "link": "node",
    }
    assert "events" not in written
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert board.Scalars("communication/all_reduce on world, exposed_ms")[0].value == 2.0


def test_the_progress_line_has_the_available_values():
    values = {"loss": 3.21049, "tokens_per_s": 12345.0, "mfu": 0.4124, "step_s": 0.0832, "communication_s": 0.00333}
    assert format_line(120, 1000, {**values, "memory_gb": 3.104}, 3725.0) == (
        "step  120/1000  loss 3.2105  12.3k tokens/s  MFU 41.2%  83.2 ms  exposed 4%  mem 3.10 GB  eta 1:02:05"
    )
    assert format_line(1, 9, {"loss": math.nan}, None) == "step 1/9  loss nan"


@pytest.mark.parametrize(
    ("value", "text"), [(7.3, "7"), (999.0, "999"), (1234.0, "1.2k"), (3.4e6, "3.4M"), (5e13, "50000G")]
)
def test_large_numbers_are_abbreviated(value: float, text: str):
    assert format_count(value) == text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_messages_are_printed_above_the_progress_line():
    terminal = Terminal()
    progress = Progress(9, terminal)
    progress.show(1, {"loss": 1.0})
    progress.show(2, {"loss": 0.5})
    progress.say("saved step 2")
    progress.show(3, {"loss": 0.4})
    progress.close()
    assert terminal.getvalue().count("\n") == 2
    assert "\r\x1b[Ksaved step 2\n" in terminal.getvalue()
