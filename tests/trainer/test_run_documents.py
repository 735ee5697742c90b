"""Runs on separate and packed documents: what the log says, the loss over counted targets, and an exact resume."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.launch import SMALL_LLAMA, checkpoint, digests, events, losses
from trainer.__main__ import main
from trainer.life.outcome import Code
from trainer.metrics.json_lines import read_lines

SETTINGS = [*SMALL_LLAMA, "data.kind=tokens", "model.vocab_size=257", "batch.size=8", "batch.micro=4", "steps=4"]
SETTINGS += ["parallel.strategy=single", "checkpoint.every=2", "evaluation.share=0.2", "evaluation.every=2"]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    texts = [f"document {number} " * (1 + number % 7) for number in range(80)]
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    assert main(["prepare", str(tmp_path / "texts.jsonl"), "--out", str(tmp_path / "shards"), "--workers", "1"]) == 0
    return tmp_path / "shards"


@pytest.mark.parametrize("documents", ["separate", "packed"])
def test_a_resumed_run_changes_no_bit(
    shards: Path, documents: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    straight, resumed = tmp_path / "straight" / "run", tmp_path / "resumed" / "run"
    settings = [*SETTINGS, f"data.path={shards}", f"data.documents={documents}"]
    assert main([*settings, f"run.folder={straight}"]) == Code.FINISHED
    output = capfd.readouterr().out
    assert "chosen: documents: separated by a mask; flex_attention does not train on a CPU" in output
    assert (": documents are packed into " in output) == (documents == "packed")
    shutil.copytree(straight, resumed)
    shutil.rmtree(checkpoint(resumed, 4))
    assert main([*settings, f"run.folder={resumed}"]) == Code.FINISHED
    assert [event["step"] for event in events(resumed, "loaded")] == [2]
    assert losses(resumed) == losses(straight)
    assert digest_weights(resumed) == digest_weights(straight)
    # Random bytes have a loss of ln(257); that of ignored targets would not be counted.
    assert losses(straight)[1] == pytest.approx(math.log(257), rel=0.05)
    assert [line["step"] for line in read_lines(straight / "metrics" / "evaluation-00000.jsonl")] == [2, 4]


def digest_weights(folder: Path) -> dict[str, Any]:
    """Return the checksums of weights and optimizer; both runs are one process, whose random states go on."""
    return {name: digest for name, digest in digests(folder, 4).items() if not name.startswith("rank-")}
