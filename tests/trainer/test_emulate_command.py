"""`python -m simulator emulate` from its arguments to its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.trainer.launch import SMALL_LLAMA, alone, assert_finished

STEPS = 2


def emulate(folder: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    with alone(["emulate", *arguments, "--out", str(folder)], folder / "logs", program="simulator") as run:
        assert_finished(run)
    return run.output, json.loads((folder / "emulate.json").read_text())


def test_emulating_64_ranks_writes_numbers_and_a_chart(tmp_path: Path) -> None:
    arguments = [*SMALL_LLAMA, f"steps={STEPS}", "batch.size=64", "batch.micro=1", "--jitter", "0.02"]
    output, result = emulate(tmp_path, "--ranks", "64", *arguments)

    assert [line["step"] for line in result["steps"]] == [1, 2]
    assert result["steps"][1]["loss"] < result["steps"][0]["loss"]
    assert result["machines"] == {"instance": "p5.48xlarge", "nodes": 8}
    (bucket,) = result["all_reduces"]
    assert bucket["rounds"] == 2 * 63
    # Each rank sends all but its own chunk, twice; the last chunks are smaller if the sizes do not divide.
    assert abs(bucket["most_sent_bytes"] / bucket["bytes"] - 2 * 63 / 64) < 0.02
    assert [row["ranks"] for row in result["scaling"]] == [1, 4, 16, 64, 256]
    assert (tmp_path / "emulate.png").read_bytes().startswith(b"\x89PNG")
    assert f"step 2/{STEPS}  loss {result['steps'][1]['loss']:.4f}" in output
    assert "bottleneck" in output
