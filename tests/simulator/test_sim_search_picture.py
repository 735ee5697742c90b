"""The picture of a plan: no element covers another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from simulator.machines import stacks
from simulator.models import find_model
from simulator.search import picture, question
from simulator.search.plan import Plan, plan
from simulator.search.question import Question


@pytest.fixture(scope="module")
def three_size_plan() -> Plan:
    model, spec = find_model("llama-8b"), stacks.spec_of(stacks.find("aws-p5en-lustre"))
    return plan(
        Question(
            named=model,
            tokens=1e12,
            spec=spec,
            group="h200",
            instances=("p5en.48xlarge", "p5.48xlarge"),
            nodes=(4, 16, 64),
            purchases=("on-demand", "spot"),
            batch=question.choose_batch(model),
            deadline_s=1e7,
        )
    )


def test_legend_does_not_cover_the_plot(three_size_plan: Plan) -> None:
    figure = picture.build_figure(three_size_plan)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    (legend,) = figure.legends
    box, axes = legend.get_window_extent(), figure.axes[0]
    assert not box.overlaps(axes.get_tightbbox())
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert axes.get_legend() is None


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_every_allowed_file_type_is_written(three_size_plan: Plan, suffix: str, magic: bytes, tmp_path: Path) -> None:
    assert suffix in picture.KINDS
    file = tmp_path / f"plan{suffix}"
    picture.draw(replace(three_size_plan, chosen=None), file)
    assert file.read_bytes().startswith(magic)
