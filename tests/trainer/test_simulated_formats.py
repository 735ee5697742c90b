"""The traffic and checkpoints that the simulator predicts for stored formats, against those of the trainer's ranks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from simulator.job import layout_from_config
from simulator.models import build_transformer
from simulator.parameters import checkpoint_gb
from simulator.step.traffic import WEIGHT_BYTES
from tests.trainer.checkpoint_state import save_and_wait
from tests.trainer.curves import global_batch, make_step
from tests.trainer.ranks import on_ranks
from tests.trainer.test_stored_formats import BF16, FORMATS, MASTER, make_config, run_steps
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.config.load import from_dict

HERE = "tests.trainer.test_simulated_formats"
RANKS = 4
# The exchanges by their names in a trace. gloo all-reduces what DDP averages, and what fully_shard scatters.
EXCHANGES = {
    "gloo:all_reduce": "reduced",
    "c10d::_reduce_scatter_base_": "reduced",
    "c10d::_allgather_base_": "gathered",
}
WIDTHS = {"float": 4, "c10::BFloat16": 2}
LARGE_VALUES = 1000


@pytest.mark.nightly_cases("fsdp zero=3-fp32", "hsdp shard=2-fp32", "fsdp zero=2-bf16")
@pytest.mark.parametrize("reduce", ["fp32", "bf16"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp zero=2", "fsdp zero=3", "hsdp shard=2"])
def test_predicted_traffic_has_the_widths_that_ranks_exchange(strategy: str, reduce: str) -> None:
    config = make_config(strategy, (*FORMATS["bf16 weights"], f"parallel.reduce={reduce}"))
    layout = layout_from_config(from_dict(config), RANKS, RANKS, 2)
    gathered = set() if strategy == "ddp" else {WEIGHT_BYTES}
    for widths in on_ranks(f"{HERE}:list_exchanged_widths", ranks=RANKS, config=config):
        assert widths == {"reduced": {layout.gradient_bytes}, "gathered": gathered}


def list_exchanged_widths(config: dict[str, Any]) -> dict[str, set[int]]:
    """Return the bytes of a value in the large exchanges of a step."""
    from torch.profiler import ProfilerActivity, profile

    settings = from_dict(config)
    step = make_step(settings)
    size = settings.batch.size // step.engine.mesh.layout.dp_size
    batch = {key: value[:size] for key, value in global_batch(settings, 0).items()}
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        step.run(batch, size)
    widths: dict[str, set[int]] = {"reduced": set(), "gathered": set()}
    for event in recorded.profiler.kineto_results.events():
        # The norm of gradients is a number that ranks add up.
        if event.name() in EXCHANGES and max(math.prod(shape) for shape in event.shapes()) >= LARGE_VALUES:
            widths[EXCHANGES[event.name()]].add(WIDTHS[event.dtypes()[0]])
    return widths


@pytest.mark.parametrize("formats", [(), BF16, (*BF16, MASTER), (*BF16, "optimizer.moments=bf16")])
def test_predicted_checkpoints_have_the_size_of_written_ones(formats: tuple[str, ...], tmp_path: Any) -> None:
    config = make_config("single", formats)
    settings = from_dict(config)
    step = make_step(settings)
    run_steps(step, config, range(1))
    checkpoints = Checkpoints(tmp_path)
    save_and_wait(checkpoints, 1, step.saved_tensors())
    checkpoint = checkpoints.newest()
    assert checkpoint is not None
    checkpoints.close()
    written = sum(count_stored(value) for value in step.saved_tensors().values())
    (shard,) = checkpoint.path.glob("*.safetensors")
    assert written <= shard.stat().st_size < written + 2**16
    predicted = checkpoint_gb(build_transformer(settings.model, settings.data.seq_len), settings.optimizer)
    assert 1e9 * predicted == pytest.approx(written, rel=0.02)


def count_stored(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
