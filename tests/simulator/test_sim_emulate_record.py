"""The output of an emulated run: lines, a table, JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from simulator.emulate.clock import Tick
from simulator.emulate.record import Line, draw_chart, format_table, write_json
from simulator.emulate.scaling import PART_LABELS, Row

TICK = Tick(step_s=0.02, exposed_s=0.001, hidden_s=0.002, wait_s=0.0, slowest=3)
LINE = Line(
    step=7,
    loss=4.25,
    grad_norm=1.0,
    skipped=False,
    rate=0.001,
    now_s=0.14,
    units_per_s=25600,
    efficiency=0.9,
    tick=TICK,
)
ROW = Row(
    ranks=4,
    step_s=0.02,
    units_per_s=25600,
    efficiency=0.9,
    shared_efficiency=None,
    communication=0.05,
    exposed_s=0.001,
    hidden_s=0.002,
    wait_s=0.0,
    parts={"compute": 0.019, "data": 0.001},
    bottleneck="matrix products 95%",
)


def test_line_shows_loss_and_time() -> None:
    assert LINE.text(40, "tokens") == (
        "step  7/40  loss 4.2500  20 ms a step  25,600 tokens/s  communication 5.0%  efficiency 90.0%"
    )


def test_table_has_a_line_per_number_of_ranks() -> None:
    assert format_table([ROW, replace(ROW, ranks=256, step_s=2.5, shared_efficiency=0.5)], "tokens").splitlines() == [
        "ranks   step  tokens/s  efficiency  same batch  exposed  bottleneck",
        "    4  20 ms    25,600       90.0%           -     5.0%  matrix products 95%",
        "  256  2.5 s    25,600       90.0%       50.0%     5.0%  matrix products 95%",
    ]


def test_table_fits_100_columns_with_every_bottleneck() -> None:
    rows = [replace(ROW, units_per_s=2_274_195, bottleneck=f"{label} 100%") for label in PART_LABELS.values()]
    assert max(map(len, format_table(rows, "tokens").splitlines())) <= 100


def test_nan_loss_is_written_as_null(tmp_path: Path) -> None:
    write_json(tmp_path / "it.json", {"ranks": 4}, [replace(LINE, loss=float("nan"))], [ROW])
    written = json.loads((tmp_path / "it.json").read_text())
    assert (written["ranks"], written["steps"][0]["loss"], written["steps"][0]["tick"]["slowest"]) == (4, None, 3)
    assert written["scaling"][0]["parts"] == ROW.parts


def test_chart_is_written_as_png(tmp_path: Path) -> None:
    draw_chart(tmp_path / "it.png", "tiny", [LINE, replace(LINE, step=8, now_s=0.16)], [ROW, replace(ROW, ranks=16)])
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")
