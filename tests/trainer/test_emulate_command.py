"""`python -m simulator emulate` from its words to its files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.trainer.launch import REPO, SMALL_LLAMA

STEPS = 2


def emulated(folder: Path, *words: str) -> tuple[str, dict[str, Any]]:
    command = [sys.executable, "-m", "simulator", "emulate", *words, "--out", str(folder)]
    done = subprocess.run(command, cwd=REPO, text=True, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / "emulate.json").read_text())


def test_sixty_four_ranks_leave_their_numbers_and_a_picture(tmp_path: Path) -> None:
    words = [*SMALL_LLAMA, f"steps={STEPS}", "batch.size=64", "batch.micro=1", "--jitter", "0.02"]
    said, found = emulated(tmp_path, "--ranks", "64", *words)

    assert [line["step"] for line in found["steps"]] == [1, 2]
    assert found["steps"][1]["loss"] < found["steps"][0]["loss"]
    assert found["machines"] == {"instance": "p5.48xlarge", "nodes": 8}
    (bucket,) = found["all_reduces"]
    assert bucket["rounds"] == 2 * 63
    # Each rank sends all but its own chunk, twice; the last chunks are smaller where the sizes do not divide.
    assert abs(bucket["most_sent_bytes"] / bucket["bytes"] - 2 * 63 / 64) < 0.02
    assert [row["ranks"] for row in found["scaling"]] == [1, 4, 16, 64, 256]
    assert (tmp_path / "emulate.png").read_bytes().startswith(b"\x89PNG")
    assert f"step 2/{STEPS}  loss {found['steps'][1]['loss']:.4f}" in said
    assert "bottleneck" in said
