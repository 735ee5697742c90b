"""The report of a run that is complete, killed, without profiles, or not a run at all."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.fake_run import BEGAN, line, make_run, profile, write
from trainer.life.cause import Cause
from trainer.life.failure import Failure, record, summarise_cause
from trainer.report import page
from trainer.report.__main__ import main
from trainer.report.attempts import list_attempts
from trainer.report.curve import MAX_POINTS, find_not_finite, find_upper_limit, make_curve, needs_log_scale, smooth
from trainer.report.figures import draw_pictures
from trainer.report.findings import list_findings
from trainer.report.run_folder import open_run
from trainer.report.summary import summarise
from trainer.report.timeline import select_timelines

PICTURES = {
    "loss",
    "evaluation",
    "throughput",
    "time-split",
    "gradient-norm",
    "memory",
    "ranks",
    "timeline",
    "recovery",
}
VOID_TAGS = {"meta", "path", "use", "rect", "br"}


class Checker(HTMLParser):
    """Checks that tags match and collects tags, text, and addresses outside the page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.texts: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID_TAGS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        addresses = [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        self.outside += [address for address in addresses if not address.startswith("#")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID_TAGS:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def check_page(page: Path) -> Checker:
    checker = Checker()
    checker.feed(page.read_text())
    checker.close()
    assert checker.open == []
    return checker


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make_run(tmp_path_factory.mktemp("runs") / "whole")
    assert main([str(run)]) == 0
    return run / "report"


def test_every_chart_is_also_a_png_file(whole: Path):
    assert {path.stem for path in whole.glob("*.png")} == PICTURES
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in whole.glob("*.png"))


def test_the_page_is_well_formed_and_self_contained(whole: Path):
    checker = check_page(whole / "index.html")
    assert checker.outside == []
    assert "script" not in checker.tags, "the text of an event must be escaped"
    assert "<script>" in "".join(checker.texts)
    assert (whole / "index.html").read_text().count("<svg") == len(PICTURES)


def test_the_timeline_of_all_ranks_is_a_trace_for_chrome(whole: Path) -> None:
    trace = json.loads((whole / "timeline.json").read_text())["traceEvents"]
    assert [event["args"]["name"] for event in trace if event["ph"] == "M"] == [f"rank {rank}" for rank in range(4)]
    spans = [event for event in trace if event["ph"] == "X" and event["pid"] == 1]
    # Collectives that overlap are in rows of their own, below compute.
    assert [(event["name"], event["tid"]) for event in spans] == [
        ("compute", 0),
        ("all_gather", 1),
        ("reduce_scatter", 2),
        ("compute", 0),
    ]
    assert spans[1]["args"] == {"group": "shard", "link": "node", "mb": 21.3}
    assert spans[1]["dur"] == pytest.approx(18_000, abs=1)
    assert spans[1]["ts"] - spans[0]["ts"] == pytest.approx(10_000, abs=1)


def test_the_page_has_traffic_by_link_and_its_hidden_share(whole: Path) -> None:
    text = (whole / "index.html").read_text()
    cells = "<td>inside the node</td><td>36</td><td>768.00</td><td>40.00</td><td>11.50</td><td>71%</td>"
    assert cells in text


def test_timelines_of_other_steps_are_left_out() -> None:
    """A rank repeats a profile whose figures differ from its last, and a resumed run may have fewer ranks."""
    steps = {0: 200, 1: 200, 2: 204, 3: 100}
    assert list(select_timelines({rank: {"step": step} for rank, step in steps.items()})) == [0, 1]
    assert list(select_timelines({0: {"step": 100}, 1: {"step": 200}})) == [1]
    fewer_ranks = {rank: {"step": 300 if rank < 2 else 200} for rank in range(8)}
    assert list(select_timelines(fewer_ranks)) == [0, 1]
    assert select_timelines({}) == {}


@pytest.mark.attack(11)
def test_a_step_that_is_html_is_escaped() -> None:
    """The files of a run belong to the user who ran it; others open the report in their browser."""
    crafted: Any = SimpleNamespace(profiles=[profile(7) | {"step": "<script>alert(1)</script>"}])
    text = page._render_communication(crafted)
    assert "<script>" not in text
    assert "Step &lt;script&gt;" in text


def test_the_page_supports_dark_mode_and_narrow_screens(whole: Path):
    text = (whole / "index.html").read_text()
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        assert "currentColor" in svg
        assert "#000000" not in svg, "black is invisible in dark mode"
        assert "#ffffff" not in svg, "a white background is glaring in dark mode"


def test_the_page_begins_with_the_outcome_and_the_findings(whole: Path):
    text = " ".join(" ".join(check_page(whole / "index.html").texts).split())
    opening = text[text.index("made finished") : text.index("Time per step by cause")]
    assert "step 400 of 400 · 2 ranks on 1 host · fsdp · 1:41 min" in opening
    assert "MFU 45.0% of 989.4 TFLOP/s" in opening
    assert "Rank 2 takes 1.4" in opening
    assert "35% of a step is communication that is not hidden by compute" in opening
    assert "1 saves failed" in opening
    assert "evaluation loss 3 best 2.5 accuracy 31.0% on held-out samples" in opening
    assert "The evaluation loss was lowest at step 300 (2.5) and then rose to 3: train for fewer steps" in opening
    assert "3 on 2,048 held-out samples at the end; lowest 2.5 at step 300; accuracy 31.0%" in text
    assert "No space left on device" in text
    assert "reduce_scatter shard inside the node 12 256.00 22.00 9.00 59%" in text


def test_a_mixture_has_a_chart_of_the_loss_of_each_source(tmp_path: Path) -> None:
    """Names are shown as they are, also those that matplotlib would hide or read as formulas."""
    names = ("web", "_hidden", "a$b$", *(f"more-{number}" for number in range(5)))
    # A source with a small weight is not part of every step.
    lines = [
        line(step, 0) | {f"loss/{name}": 1.0 + number for number, name in enumerate(names) if step % (number + 1) == 0}
        for step in (840, 841, 842)
    ]
    (tmp_path / "metrics").mkdir()
    write(tmp_path / "metrics" / "rank-00000.jsonl", lines)
    write(tmp_path / "metrics" / "evaluation-00000.jsonl", [{"step": 840, "loss": 2.0, "loss/web": 1.5, "samples": 8}])
    picture = next(picture for picture in draw_pictures(open_run(tmp_path)) if picture.name == "sources")
    assert picture.caption == (
        "At the end: web 1, _hidden 2, a$b$ 3, more-0 4, more-1 5, more-2 6; dots: on held-out samples; "
        "2 other sources are in the metrics."
    )
    for name in names[:6]:
        assert f"{name}</text>" in picture.svg
    assert names[6] not in picture.svg


def test_the_summary_is_plain_json(whole: Path):
    summary = json.loads((whole / "summary.json").read_text())
    assert (summary["outcome"], summary["step"], summary["starts"], summary["saves"]) == ("finished", 400, 2, 2)
    assert summary["recovery_s"] == [38.6]
    assert summary["peak"]["source"] == "data sheet of NVIDIA H200"


def test_attempts_are_split_into_phases(tmp_path: Path):
    first, second = list_attempts(open_run(make_run(tmp_path / "run")))
    assert [first.number, first.world_size, first.from_step, first.down] == [1, 4, 0, 0]
    assert {name: round(s, 1) for name, s in first.phases.items()} == {
        "import": 3.1,
        "rendezvous": 3.3,
        "build": 5.6,
        "first step": 8.1,
    }
    assert [second.world_size, second.from_step, second.end] == [2, 200, "finished"]
    assert list(second.phases) == ["import", "rendezvous", "build", "load", "first step"]
    # The last record of the first attempt is the straggler's event, 1.5 s after its last line of metrics.
    assert second.down == pytest.approx(63.2 - 41.5, abs=0.01)
    assert second.down + second.start_up == pytest.approx(80.1 - 41.5, abs=0.01)


def test_a_killed_run_is_reported_up_to_its_last_complete_line(tmp_path: Path):
    run = make_run(tmp_path / "run", finished=False)
    for path in (run / "metrics" / "rank-00000.jsonl", run / "events.jsonl"):
        path.write_bytes(path.read_bytes()[:-7])
    (run / "outcome.json").write_text('{"outcome": "requ')
    (run / "config.yaml").write_text("name: made\nmodel: {fam")
    assert main([str(run), "--out", str(tmp_path / "out")]) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["outcome"], summary["step"], summary["steps"]) == ("no end recorded", 399, None)
    assert "the run is still running, or it was killed" in " ".join(check_page(tmp_path / "out" / "index.html").texts)


def test_events_of_the_job_script_do_not_start_an_attempt(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    before = list_attempts(open_run(run))
    first = {"time": BEGAN - 5, "event": "job_started", "attempt": 0}
    last = {"time": BEGAN + 5000, "event": "job_step_ended", "attempt": 0}
    whole = (run / "events.jsonl").read_text()
    (run / "events.jsonl").write_text(json.dumps(first) + "\n" + whole + json.dumps(last) + "\n")
    assert list_attempts(open_run(run)) == before


def test_the_last_step_and_the_last_recorded_step_are_both_shown(tmp_path: Path):
    run = make_run(tmp_path / "run", steps=20, finished=False)
    stopped = {"outcome": "stopped", "reason": "stop requested", "step": 27, "time": BEGAN + 900}
    (run / "outcome.json").write_text(json.dumps(stopped))
    assert main([str(run), "--no-pictures"]) == 0
    summary = json.loads((run / "report" / "summary.json").read_text())
    assert (summary["outcome"], summary["step"], summary["recorded_step"]) == ("stopped", 27, 20)
    text = " ".join(check_page(run / "report" / "index.html").texts)
    assert "step 27 of 400 · metrics up to step 20 ·" in text


def test_failures_are_explained_by_their_first_cause(tmp_path: Path):
    run = make_run(tmp_path / "run", finished=False)
    place = {"attempt": "12.0", "step": 200, "host": "node-2", "hosts": ("node-1", "node-2")}
    record(run, Failure(time=BEGAN + 41, rank=0, cause=Cause.LOST_PEER, error="Connection closed by peer", **place))
    last = {"attempt": "12.1", "step": 400, "host": "node-1", "place": "model.py:12 in forward"}
    error = Failure(
        time=BEGAN + 99, rank=0, cause=Cause.USER_CODE, error="KeyError: <x>", traceback="Traceback", **last
    )
    record(run, error)
    ended = {"outcome": "broken", "reason": str(error), "step": 400, "time": BEGAN + 100, "failure": error.summarise()}
    (run / "outcome.json").write_text(json.dumps(ended))
    assert main([str(run), "--no-pictures"]) == 0
    summary = json.loads((run / "report" / "summary.json").read_text())
    assert (summary["failure"]["cause"], summary["failure"]["rank"]) == ("user_code", 0)
    causes = [(failure["cause"], failure["rank"], failure["host"]) for failure in summary["failures"]]
    assert causes == [("lost_peer", 1, "node-2"), ("user_code", 0, "node-1")]
    text = " ".join(" ".join(check_page(run / "report" / "index.html").texts).split())
    assert (
        "broken at step 400: rank 0 on node-1: user code: KeyError: <x> (model.py:12 in forward); fix the code" in text
    )
    assert "Attempts that failed before: 1x lost peer on node-2" in text
    assert "user code KeyError: <x> model.py:12 in forward fix the code at this place" in text


def test_a_failure_before_an_end_by_vote_is_listed(tmp_path: Path):
    run = make_run(tmp_path / "run", finished=False)
    place = {"attempt": "12.0", "step": 200, "host": "node-2"}
    record(run, Failure(time=BEGAN + 41, rank=1, cause=Cause.DEVICE, error="CUDA error", **place))
    verdict = summarise_cause(Cause.NUMERICS, "no finite loss in 50 steps")
    ended = {"outcome": "broken", "reason": verdict["error"], "step": 400, "time": BEGAN + 100, "failure": verdict}
    (run / "outcome.json").write_text(json.dumps(ended))
    texts = [finding.text for finding in list_findings(summarise(open_run(run)))]
    assert "Attempts that failed before: 1x device on node-2; see the failures below." in texts


def test_the_outcome_of_an_earlier_attempt_is_ignored(tmp_path: Path):
    run = make_run(tmp_path / "run", finished=False)
    (run / "outcome.json").write_text(
        '{"outcome": "requeue", "reason": "time limit", "step": 200, "time": 1790000042.0}'
    )
    summary = summarise(open_run(run))
    assert (summary["outcome"], summary["reason"], summary["step"]) == ("no end recorded", "", 400)


def test_a_run_that_died_before_its_first_step_has_a_report(tmp_path: Path):
    began = {"time": 100.0, "event": "started", "began": 98.0}
    write(tmp_path / "events.jsonl", [began, {"time": 100.5, "event": "imported"}])
    assert main([str(tmp_path)]) == 0
    assert {path.stem for path in (tmp_path / "report").glob("*.png")} == {"recovery"}
    check_page(tmp_path / "report" / "index.html")


def test_missing_measurements_are_reported_and_not_drawn_as_zero(tmp_path: Path):
    run = make_run(tmp_path / "run", profiled=False)
    summary = summarise(open_run(run))
    assert summary["split"]["communication"] is None
    assert any("set metrics.profile_every" in finding.text for finding in list_findings(summary))


@pytest.mark.parametrize(
    ("exists", "problem"), [(False, "is not a folder"), (True, "neither metrics/rank-*.jsonl nor")]
)
def test_a_folder_that_is_not_a_run_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], exists: bool, problem: str
):
    folder = tmp_path / "run"
    if exists:
        folder.mkdir()
    assert main([str(folder)]) == 2
    assert problem in capsys.readouterr().err
    assert not (folder / "report").exists()


def without(package: str) -> str:
    """Return code that runs the command as if this package were not installed."""
    start = "from trainer.report.__main__ import main; sys.exit(main(sys.argv[1:]))"
    return f"import sys; sys.modules['{package}'] = None; {start}"


def test_without_matplotlib_the_error_names_it_and_a_page_without_charts_works(tmp_path: Path):
    run = make_run(tmp_path / "run", steps=20)
    command = [sys.executable, "-c", without("matplotlib"), str(run)]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "pip install matplotlib, or use --no-pictures" in refused.stderr
    assert subprocess.run([*command, "--no-pictures"]).returncode == 0
    assert (run / "report" / "index.html").is_file()
    assert list((run / "report").glob("*.png")) == []


def test_a_report_does_not_need_torch(tmp_path: Path):
    run = make_run(tmp_path / "run", steps=5)
    assert subprocess.run([sys.executable, "-c", without("torch"), str(run), "--no-pictures"]).returncode == 0


def test_the_curve_of_a_long_run_is_averaged():
    lines = [{"step": step, "loss": 2.0 * (step % 2)} for step in range(100_000)]
    points = make_curve(lines, "loss")
    assert len(points.steps) <= MAX_POINTS
    assert points.values[10] == pytest.approx(1.0, abs=0.01)


def test_nan_is_left_out_of_a_curve_and_listed():
    lines = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": float("nan")}, {"step": 3}]
    assert make_curve(lines, "loss").steps == [1]
    assert find_not_finite(lines, "loss") == [2]


def test_the_scale_of_an_axis_depends_on_its_values():
    assert needs_log_scale([0.01, 5.0])
    assert not needs_log_scale([2.0, 8.0])
    assert not needs_log_scale([])
    assert smooth([1.0] * 200) == pytest.approx([1.0] * 200)
    assert find_upper_limit([10.0, 1.0, 1.0, 1.0]) == pytest.approx(1.2)
    assert find_upper_limit([1.0, 1.1]) is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"outcome": "broken", "reason": "20 updates skipped in a row"}, "broken at step 400: 20 updates skipped"),
        ({"split": {"data": 0.31}}, "31% of a step is spent waiting for data: increase data.workers"),
        ({"split": {"checkpoint": 0.2}}, "20% of a step is spent waiting for checkpoints"),
        ({"first_loss": 2.0, "last_loss": 9.0}, "The loss rose from 2 to 9"),
        ({"skipped": 3}, "3 recorded updates were skipped"),
        ({"recovery_s": [38.6, 12.0]}, "restarted 2x; the time until the next step was 38.6 s, 12.0 s"),
    ],
)
def test_unusual_figures_become_findings(tmp_path: Path, change: dict[str, Any], text: str):
    summary = summarise(open_run(make_run(tmp_path / "run")))
    split = {**summary["split"], **change.pop("split", {})}
    findings = list_findings({**summary, "split": split, **change})
    assert any(text in finding.text for finding in findings)


def test_equal_ranks_have_no_straggler(tmp_path: Path):
    (tmp_path / "metrics").mkdir()
    for rank in (0, 1):
        write(tmp_path / "metrics" / f"rank-{rank:05d}.jsonl", [line(step, 0) for step in range(1, 20)])
    assert not any("median rank" in finding.text for finding in list_findings(summarise(open_run(tmp_path))))
