"""A run does not import the compiler before its first step, because that takes as long as importing torch itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
import torch.distributed as dist
from tests.trainer.curves import config_of, curve

def train(strategy):
    result = curve(config_of("tiny-llama", ["parallel.strategy=" + strategy, "model.layers=1"]), micro=2, steps=2)
    assert len(result["loss"]) == 2
    heavy = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor", "torch.distributed.pipelining")
    print(strategy, [name for name in heavy if name in sys.modules])

rank, store = int(sys.argv[1]), sys.argv[2]
train("single")
dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
train("ddp")
"""


def test_heavy_parts_of_torch_are_not_imported(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        output, errors = rank.communicate(timeout=240)
        assert output == "single []\nddp []\n", errors
