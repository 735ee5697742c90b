"""muster's own sharded data parallelism holds no more blocks than torch's fully_shard, at aligned addresses."""

from __future__ import annotations

import gc
from itertools import pairwise
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.peak_memory import MemoryCount, measure_memory
from tests.trainer.curves import config_of, make_step
from tests.trainer.ranks import on_ranks
from tests.trainer.strategies import settings
from tests.trainer.test_engine_fsdp import SHALLOW, make_batch, run
from trainer.config.load import from_dict
from trainer.engines.block import ALIGNED_BYTES
from trainer.engines.flat_layout import count_values, plan_parts

# Layers whose weights take more memory than their activations; 16 tokens in a sequence.
WIDE = [*SHALLOW, "model.layers=5", "model.dim=128", "model.heads=2", "model.kv_heads=2", "model.ffn=512"]
# With bf16, the tensors of this small model take 3.4 % more than with torch's engine. The cause has not been found; it
# is not gloo's own buffers, which are not counted here.
BOUNDS = {"fp32": 1.02, "bf16": 1.05}


@pytest.mark.nightly
@pytest.mark.parametrize("precision", BOUNDS)
def test_the_peak_is_that_of_torch(precision: str) -> None:
    peaks = {}
    for engine in ("torch", "muster"):
        config = config_of("tiny-llama", [*WIDE, *settings(f"fsdp engine={engine}"), f"precision={precision}"])
        peaks[engine] = max(on_ranks(f"{__name__}:measure_steps", config=config))
    assert 0 < peaks["muster"] <= BOUNDS[precision] * peaks["torch"]


def measure_steps(config: dict[str, Any]) -> int:
    """Return the most bytes of tensors from building the model to the end of the second step."""

    def build_and_run() -> None:
        step = make_step(from_dict(config))
        for _ in range(2):
            run(step, 1)

    return measure_memory(build_and_run, torch.device("cpu")).tensors


class BlockCount(TorchDispatchMode):
    """A context that counts the blocks that take memory, after each operation."""

    def __init__(self, engine: Any) -> None:
        super().__init__()
        self.most = {"whole": 0, "whole or on their way": 0, "gradients": 0}
        self._engine = engine

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        blocks, gradients = self._engine._passes.blocks, self._engine._gradients
        counts = {
            "whole": sum(block._memory.nbytes() > 0 for block in blocks),
            "whole or on their way": sum(block.is_whole or block._gather is not None for block in blocks),
            # Whole gradients that arrive, and those that are sent.
            "gradients": sum(bool(block._whole) for block in gradients) + len(self._engine._reductions._running),
        }
        self.most = {name: max(self.most[name], count) for name, count in counts.items()}
        return results


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_at_most_the_running_block_and_those_ahead_exist(ahead: int) -> None:
    """In the middle of forward, and all the way back, of 7 blocks: embedding, 5 layers, and norm with head."""
    config = config_of("tiny-llama", [*WIDE, *settings(f"fsdp engine=muster prefetch={ahead}")])
    for forward, backward in on_ranks(f"{__name__}:count_blocks", ranks=2, config=config):
        assert forward == {"whole": 1, "whole or on their way": 1 + ahead, "gradients": 0}
        # The last block is still whole when the one before is gathered.
        assert backward == {"whole": 1, "whole or on their way": 1 + ahead, "gradients": 2}


def count_blocks(config: dict[str, Any]) -> list[dict[str, int]]:
    """Return the most blocks that exist at a time, in the forward pass and in the backward pass."""
    step = make_step(from_dict(config))
    engine: Any = step.engine
    counts = []

    def measure(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        counts.append(dict(count.most))
        count.most = dict.fromkeys(count.most, 0)
        return torch.nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    with BlockCount(engine) as count:
        engine.forward_backward(make_batch(1), measure, 1, None)
    return [*counts, count.most]


def test_storages_that_another_thread_frees_are_not_counted() -> None:
    """A tensor whose last reference is on another thread, as those of gloo's collectives are."""

    def allocate_and_free_elsewhere() -> None:
        held = [torch.ones(1000)]
        thread = Thread(target=held.clear)
        thread.start()
        thread.join()
        torch.ones(500)

    assert measure_memory(allocate_and_free_elsewhere, torch.device("cpu")).tensors == 4000


def test_storages_are_counted_at_their_size_of_the_moment() -> None:
    with MemoryCount() as count:
        whole = torch.ones(1000)
        view = whole[:10]
        whole.untyped_storage().resize_(0)
        other = torch.ones(900)
        assert count.peak_tensors == 4000
        whole.untyped_storage().resize_(800)
        view[:1].zero_()
    assert count.peak_tensors == 4400
    assert other.numel() == 900


def make_small_tensor() -> None:
    torch.ones(1)


@pytest.mark.nightly
def test_garbage_of_an_earlier_run_hides_nothing() -> None:
    measure_memory(make_small_tensor, torch.device("cpu"))  # the first run imports modules of torch
    cycle: list[Any] = [torch.ones(1 << 20)]
    cycle.append(cycle)
    del cycle

    def allocate() -> None:
        gc.collect()
        torch.ones(1 << 20)

    peak = measure_memory(allocate, torch.device("cpu"))
    assert 0 <= peak.allocated - (1 << 22) < 1 << 16


@pytest.mark.nightly
def test_allocated_memory_includes_what_no_operation_returns() -> None:
    """Such as the buffers of gloo; an array of NumPy stands for them."""

    def allocate() -> None:
        buffer = np.ones(1 << 20, dtype=np.uint8)
        torch.ones(1 << 18)
        del buffer
        torch.ones(1 << 18)

    peak = measure_memory(allocate, torch.device("cpu"))
    assert peak.tensors == 1 << 20
    assert 0 <= peak.allocated - (1 << 21) < 1 << 16


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_parts_start_at_multiples(ranks: int) -> None:
    parts = plan_parts([(5,), (8, 3), (1,), (16,)], ranks, align=8)
    assert all(part.start % 8 == 0 for part in parts)
    assert all(before.start + before.size <= after.start for before, after in pairwise(parts))
    assert count_values(parts, align=8) % 8 == 0
    assert count_values(parts, align=8) >= parts[-1].start + parts[-1].size


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_start_at_aligned_addresses(precision: str) -> None:
    """With sizes that no power of two divides."""
    odd = ["model.dim=30", "model.heads=3", "model.kv_heads=1", "model.ffn=7", "model.vocab_size=9"]
    config = config_of("tiny-llama", [*SHALLOW, *odd, *settings("fsdp engine=muster"), f"precision={precision}"])
    for shard, whole in on_ranks(f"{__name__}:list_misaligned", ranks=2, config=config):
        assert (shard, whole) == (0, 0)


def list_misaligned(config: dict[str, Any]) -> tuple[int, int]:
    """Return how many shards and how many whole weights start at an address that is not aligned."""
    engine: Any = make_step(from_dict(config)).engine
    counts = [0, 0]
    for block in engine._passes.blocks:
        block.gather()
        counts[0] += sum(value.to_local().data_ptr() % ALIGNED_BYTES != 0 for value in block.sharded)
        counts[1] += sum(value.data_ptr() % ALIGNED_BYTES != 0 for value in block.whole)
        block.free()
    return counts[0], counts[1]
