"""A GPU that a rank cannot use is an error with its reason, not a reason to train on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from trainer.life.cause import Cause, classify
from trainer.world import DeviceError, choose_device


@pytest.fixture
def full_gpu() -> Iterator[None]:
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.0)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.usefixtures("full_gpu")
@pytest.mark.parametrize("requested", ["auto", "cuda"])
def test_a_gpu_without_free_memory_is_named_with_the_reason(requested: str) -> None:
    with pytest.raises(DeviceError, match=r"GPU 0 on .* cannot be used: .*out of memory.*nvidia-smi") as error:
        choose_device(requested, 0)
    assert classify(error.value) is Cause.DEVICE


@pytest.mark.usefixtures("full_gpu")
def test_the_cpu_can_be_asked_for_on_a_full_gpu() -> None:
    assert choose_device("cpu", 0) == "cpu"
