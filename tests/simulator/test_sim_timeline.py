"""The timeline of a step: its events, the files that `trace` writes, and errors for invalid layouts."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from simulator.__main__ import main
from simulator.commands.layout_option import parse_layout
from simulator.layout import Layout
from simulator.machines.instances import system
from simulator.machines.profile import read
from simulator.models import find_model
from simulator.step.prediction import predict
from simulator.step.timeline import STREAMS, Event, build_timeline, to_chrome_trace
from simulator.step.timeline_output import COLOURS, LEGEND, ROWS
from tests.simulator import profile_factory
from trainer.config.errors import ConfigError

CASES = {
    "one GPU": ("llama-1b", "micro_batch=2,global_batch=8"),
    "ddp in a node": ("llama-1b", "dp=8,micro_batch=2,global_batch=32"),
    "ddp across nodes": ("llama-1b", "dp=16,micro_batch=2,global_batch=32"),
    "zero 3 across nodes": ("llama-8b", "dp=32,zero=3,micro_batch=1,global_batch=64"),
    "tensor and pipeline": ("llama-8b", "dp=2,tp=4,pp=2,micro_batch=1,global_batch=16,sequence_parallel=true"),
    "zero 3 in a pipeline": ("llama-8b", "dp=8,pp=2,zero=3,micro_batch=1,global_batch=32"),
    "gpipe": ("llama-8b", "tp=4,pp=4,schedule=gpipe,micro_batch=1,global_batch=8"),
    "context": ("llama-8b", "dp=2,tp=2,cp=2,micro_batch=1,global_batch=4,recompute=full"),
}


def events_of(case: str) -> tuple[list[Event], float]:
    model, layout_text = CASES[case]
    layout = parse_layout(layout_text)
    machines = system("p5.48xlarge", -(-layout.gpus // 8))
    shape = find_model(model).model
    return build_timeline(shape, layout, machines), predict(shape, layout, machines).step_s


@pytest.mark.parametrize("case", CASES)
def test_timeline_ends_at_the_predicted_step_time(case: str) -> None:
    events, step_s = events_of(case)
    assert max(event.end for event in events) == pytest.approx(step_s, rel=0.02)
    assert min(event.start for event in events) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_compute_events_do_not_overlap(case: str) -> None:
    events, _ = events_of(case)
    compute = [event for event in events if event.stream == "compute"]
    assert all(second.start >= first.end - 1e-9 for first, second in pairwise(compute))
    assert all(event.end > event.start for event in events)


def test_pipeline_stages_gather_weights_once() -> None:
    def gathers(case: str) -> list[str]:
        return [event.name for event in events_of(case)[0] if event.name.startswith("all-gather")]

    assert gathers("zero 3 in a pipeline") == [f"all-gather {layer} forward 0" for layer in range(16)]
    assert len(gathers("zero 3 across nodes")) == 32 * 2 * 2, "32 layers, forward and backward, two micro-batches"


def test_timeline_has_only_the_streams_in_use() -> None:
    def streams(case: str) -> set[str]:
        return {event.stream for event in events_of(case)[0]}

    assert streams("one GPU") == {"compute"}
    assert streams("ddp in a node") == {"compute", "intra-node"}
    assert streams("ddp across nodes") == {"compute", "inter-node"}
    assert streams("tensor and pipeline") >= {"compute", "intra-node"}


def test_gradient_buckets_overlap_with_backward() -> None:
    events, _ = events_of("ddp across nodes")
    last = max(event.end for event in events if "backward" in event.name)
    assert any(event.start < last for event in events if "bucket" in event.name)


def test_gpipe_runs_all_forwards_first() -> None:
    events, _ = events_of("gpipe")
    forward = max(event.end for event in events if "forward" in event.name)
    assert min(event.start for event in events if "backward" in event.name) >= forward - 1e-9


def test_chrome_events_name_their_streams() -> None:
    events, _ = events_of("ddp in a node")
    rows = to_chrome_trace(events)["traceEvents"]
    assert [row["args"]["name"] for row in rows if row["ph"] == "M"] == list(STREAMS)
    assert sum(row["ph"] == "X" for row in rows) == len(events)
    assert max(row["ts"] + row["dur"] for row in rows if row["ph"] == "X") == pytest.approx(
        1e6 * max(event.end for event in events)
    )


def test_trace_writes_json_and_png(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["trace", "llama-1b", "--system", "p5.48xlarge", "--layout", "dp=8,global_batch=8"]
    assert main([*arguments, "--out", str(tmp_path / "step.json")]) == 0
    assert json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    assert main([*arguments, "--out", str(tmp_path / "step.png")]) == 0
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    assert "events of a step of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["llama-1b", "--layout", "dq=2"], "--layout dq: '2'; allowed names: dp,"),
        (["llama-1b", "--layout", "dp=-2"], "--layout dp: '-2'; allowed: 1 or more"),
        (["llama-1b", "--layout", "zero=4"], "--layout zero: '4'; allowed: 0, 1, 2, 3"),
        (["llama-1b", "--layout", "dp=8,global_batch=4"], "--layout global_batch: 4; allowed: a multiple"),
        (["llama-1b", "--layout", "dp=12"], "--layout dp x tp x pp x cp: 12; allowed: up to 8, or a multiple"),
        (["llama-8b", "--layout", "dp=2,tp=3"], "--layout tp: 3; allowed: divisors of heads = 32"),
        (["llama-8b", "--layout", "dp=2,tp=2,dp=4"], "--layout dp: '4', but already set to '2'; allowed: once"),
        (["llama-8b", "--layout", "dp=1000000"], "1000000; allowed: up to 8192, 1024 nodes of a p5.48xlarge; make"),
        (["llama-8b", "--layout", "pp=12"], "--layout pp: 12; allowed: divisors of layers = 32"),
        (["llama-8b", "--layout", "dp=8,zero=3,shard=3"], "--layout shard: 3; allowed: a divisor of dp x cp = 8"),
        (["llama-8b", "--layout", "dp=8,ep=8"], "--layout ep: 8; allowed: 1, the model has no experts; leave it out"),
        (["llama-8b", "--layout", "global_batch=99999999999"], "allowed: up to 1024, 1024 micro-batches of each"),
        (["llama-8b", "--layout", "memory_figure=x"], "--layout memory_figure: 'x'; allowed: peak, reserved, device"),
        (["llama-1b", "--system", "z9.huge"], "z9.huge"),
        (["lama", "--layout", "dp=1"], "model: 'lama' is not known"),
    ],
)
def test_invalid_arguments_are_rejected(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["trace", *arguments, "--out", str(tmp_path / "x.json")]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["s.json", "s.png"])
def test_missing_output_folder_is_named(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "no" / name
    assert main(["trace", "llama-1b", "--out", str(out)]) == 2
    message = (
        f"simulator: --out: {out}; allowed: a file in a folder that exists; create {out.parent} first, or name another"
    )
    assert capsys.readouterr().err == message + "\n"


def test_unwritable_output_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    taken = tmp_path / "taken.json"
    taken.mkdir()
    assert main(["trace", "llama-1b", "--out", str(taken)]) == 2
    assert f"out: {taken} (Is a directory); allowed: a file that can be written" in capsys.readouterr().err


def test_layout_that_does_not_fit_is_drawn_and_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "s.json"
    assert main(["trace", "llama-405b", "--out", str(out)]) == 0
    output = capsys.readouterr().out
    assert output.startswith("DOES NOT FIT: memory: ")
    assert "allowed: 80 GiB; largest: optimizer" in output
    assert json.loads(out.read_text())["traceEvents"]
    assert main(["trace", "llama-8b", "--layout", "dp=16,zero=3,recompute=full", "--out", str(out)]) == 0
    assert "DOES NOT FIT" not in capsys.readouterr().out


def test_uneven_stages_are_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["trace", "llama-8b", "--out", str(tmp_path / "s.json"), "--layout"]
    assert main([*arguments, "pp=5,global_batch=8"]) == 0
    assert "uneven stages: 32 layers on pp=5; timed by the longest, which has 7 layers" in capsys.readouterr().out
    assert main([*arguments, "pp=4,global_batch=8"]) == 0
    assert "uneven stages" not in capsys.readouterr().out


def test_example_in_the_help_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["trace", "--help"])
    assert "--layout dp=8,tp=4 " in capsys.readouterr().out
    assert main(["trace", "llama-8b", "--layout", "dp=8,tp=4", "--out", str(tmp_path / "s.json")]) == 0


def test_default_batch_is_one_micro_batch_per_replica() -> None:
    layout = parse_layout("dp=8,micro_batch=2")
    assert (layout.global_batch, layout.micro_batches) == (16, 1)
    assert parse_layout("dp=8, micro_batch=2") == layout


def test_profile_replaces_the_machines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    profile = profile_factory.write(tmp_path / "p.json", profile_factory.profile((1, 2)))
    arguments = ["trace", "tiny-llama", "--profile", str(profile), "--out", str(tmp_path / "s.json"), "--layout"]
    assert main([*arguments, "dp=2,micro_batch=4"]) == 0
    machines = read(profile).of(1, 2)
    layout = Layout(dp=2, micro_batch=4, global_batch=8, dtype="fp32")
    step_s = predict(find_model("tiny-llama").model, layout, machines.system, machines.rates).step_s
    assert f"events of a step of {1000 * step_s:,.1f} ms" in capsys.readouterr().out
    assert main([*arguments, "dp=8"]) == 2
    assert f"dp x tp x pp x cp: 8, not measured by {profile}; allowed: 1, 2; calibrate" in capsys.readouterr().err
    profile.unlink()
    assert main([*arguments, "dp=2"]) == 2
    assert f"profile.file: {profile} cannot be read (No such file or directory); allowed: " in capsys.readouterr().err


def test_legend_labels_every_colour() -> None:
    assert set(LEGEND) == {*COLOURS, "other"}
    assert not {"wait", "bucket", "other"} & set(LEGEND.values())
    assert set(ROWS) == set(STREAMS)


def test_layout_parses_every_type_of_value() -> None:
    layout = parse_layout("dp=2,zero=1,recompute=full,sequence_parallel=true,compression=0.5,global_batch=2")
    assert (layout.zero, layout.recompute, layout.sequence_parallel, layout.compression) == (1, "full", True, 0.5)
    with pytest.raises(ConfigError, match="allowed: true or false"):
        parse_layout("offload=maybe")
