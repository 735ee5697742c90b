"""The timeline of a step: its end is the prediction's, streams never overlap with themselves, files open elsewhere."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from simulator.__main__ import main
from simulator.instances import system
from simulator.layout_words import layout
from simulator.models import named
from simulator.step import predict
from simulator.timeline import STREAMS, Event, timeline, to_chrome
from trainer.config.problem import ConfigError

CASES = {
    "one GPU": ("llama-1b", "micro_batch=2,global_batch=8"),
    "ddp in a node": ("llama-1b", "dp=8,micro_batch=2,global_batch=32"),
    "ddp across nodes": ("llama-1b", "dp=16,micro_batch=2,global_batch=32"),
    "zero 3 across nodes": ("llama-8b", "dp=32,zero=3,micro_batch=1,global_batch=64"),
    "tensor and pipeline": ("llama-8b", "dp=2,tp=4,pp=2,micro_batch=1,global_batch=16,sequence_parallel=true"),
    "gpipe": ("llama-8b", "tp=4,pp=4,schedule=gpipe,micro_batch=1,global_batch=8"),
    "context": ("llama-8b", "dp=2,tp=2,cp=2,micro_batch=1,global_batch=4,recompute=full"),
}


def events_of(case: str) -> tuple[list[Event], float]:
    model, words = CASES[case]
    wanted = layout(words)
    on = system("p5.48xlarge", -(-wanted.gpus // 8))
    shape = named(model).model
    return timeline(shape, wanted, on), predict(shape, wanted, on).step_s


@pytest.mark.parametrize("case", CASES)
def test_it_ends_where_the_prediction_does(case: str) -> None:
    events, step_s = events_of(case)
    assert max(event.end for event in events) == pytest.approx(step_s, rel=0.02)
    assert min(event.start for event in events) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_the_compute_stream_does_one_thing_at_a_time(case: str) -> None:
    events, _ = events_of(case)
    compute = [event for event in events if event.stream == "compute"]
    assert all(second.start >= first.end - 1e-9 for first, second in pairwise(compute))
    assert all(event.end > event.start for event in events)


def test_streams_are_those_that_the_layout_uses() -> None:
    def streams(case: str) -> set[str]:
        return {event.stream for event in events_of(case)[0]}

    assert streams("one GPU") == {"compute"}
    assert streams("ddp in a node") == {"compute", "intra-node"}
    assert streams("ddp across nodes") == {"compute", "inter-node"}
    assert streams("tensor and pipeline") >= {"compute", "intra-node"}


def test_gradients_travel_beside_backward() -> None:
    events, _ = events_of("ddp across nodes")
    last = max(event.end for event in events if "backward" in event.name)
    assert any(event.start < last for event in events if "bucket" in event.name)


def test_gpipe_runs_everything_forward_first() -> None:
    events, _ = events_of("gpipe")
    forward = max(event.end for event in events if "forward" in event.name)
    assert min(event.start for event in events if "backward" in event.name) >= forward - 1e-9


def test_chrome_events_name_their_streams() -> None:
    events, _ = events_of("ddp in a node")
    rows = to_chrome(events)["traceEvents"]
    assert [row["args"]["name"] for row in rows if row["ph"] == "M"] == list(STREAMS)
    assert sum(row["ph"] == "X" for row in rows) == len(events)
    assert max(row["ts"] + row["dur"] for row in rows if row["ph"] == "X") == pytest.approx(
        1e6 * max(event.end for event in events)
    )


def test_the_command_writes_both_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["trace", "llama-1b", "--system", "p5.48xlarge", "--layout", "dp=8,global_batch=8"]
    assert main([*words, "--out", str(tmp_path / "step.json")]) == 0
    assert json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    assert main([*words, "--out", str(tmp_path / "step.png")]) == 0
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    assert "events of a step of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["llama-1b", "--layout", "dq=2"], "--layout dq: '2'; allowed names: dp,"),
        (["llama-1b", "--layout", "dp=-2"], "--layout dp: '-2'; allowed: 1 or more"),
        (["llama-1b", "--layout", "zero=4"], "--layout zero: '4'; allowed: 0, 1, 2, 3"),
        (["llama-1b", "--layout", "dp=8,global_batch=4"], "--layout global_batch: 4; allowed: a multiple"),
        (["llama-1b", "--layout", "dp=12,global_batch=12"], "--ranks: 12; allowed"),
        (["llama-1b", "--system", "z9.huge"], "z9.huge"),
        (["lama", "--layout", "dp=1"], "model: 'lama' is not known"),
    ],
)
def test_refusals(words: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["trace", *words, "--out", str(tmp_path / "x.json")]) == 2
    assert says in capsys.readouterr().err


def test_a_layout_keeps_every_kind_of_value() -> None:
    found = layout("dp=2,zero=1,recompute=full,sequence_parallel=true,compression=0.5,global_batch=2")
    assert (found.zero, found.recompute, found.sequence_parallel, found.compression) == (1, "full", True, 0.5)
    with pytest.raises(ConfigError, match="allowed: true or false"):
        layout("offload=maybe")
