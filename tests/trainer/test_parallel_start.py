"""A run does not import the compiler before its first step, because that takes as long as importing torch itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
import torch.distributed as dist
rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if world > 1:
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
from tests.trainer.curves import config_of, curve
result = curve(config_of("tiny-llama", ["parallel.strategy=" + sys.argv[4], "model.layers=1"]), micro=2, steps=2)
assert len(result["loss"]) == 2
heavy = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor", "torch.distributed.pipelining")
print("heavy:", [name for name in heavy if name in sys.modules])
"""


@pytest.mark.parametrize(("strategy", "world"), [("single", 1), ("ddp", 2)])
def test_heavy_parts_of_torch_are_not_imported(strategy: str, world: int, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(world), str(tmp_path / "store"), strategy],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(world)
    ]
    for rank in ranks:
        output, errors = rank.communicate(timeout=240)
        assert output == "heavy: []\n", errors
