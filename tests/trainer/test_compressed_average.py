"""Where gradients are compressed, on a thread or at once, and errors that must not leave anybody waiting."""

from __future__ import annotations

from collections.abc import Callable
from threading import current_thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainer.compression import compression as compression_module
from trainer.compression.background import CompressionThread
from trainer.compression.compression import Part
from trainer.compression.ddp_hook import CompressionHook
from trainer.engines.reduction import choose_compressed_average

CPU = torch.device("cpu")
PARTS = [Part("weight", (2,))]


class Recorder:
    """A compression that records on which thread and over which group it averages."""

    def __init__(self, _settings: Any = None, group: Any = None, _parts: Any = None, _device: Any = None) -> None:
        self.group = group
        self.threads: list[str] = []

    def average(self, _values: torch.Tensor, _parts: list[Part]) -> None:
        self.threads.append(current_thread().name)


@pytest.mark.parametrize(
    ("device", "thread", "group"), [("cpu", "compression", "a group for a thread"), ("cuda", "MainThread", "replicate")]
)
def test_blocks_are_compressed_on_a_thread_but_on_a_gpu_at_once(
    device: str, thread: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads with a communicator of NCCL each may wait for each other."""
    monkeypatch.setattr(compression_module, "Compression", Recorder)
    mesh: Any = SimpleNamespace(
        device=torch.device(device), group=lambda axis: axis, open_group=lambda _: "a group for a thread"
    )
    recipe: Any = SimpleNamespace(communication=None)
    start, recorder = choose_compressed_average(PARTS, recipe, mesh)
    start(torch.zeros(2), PARTS)()
    assert isinstance(recorder, Recorder)
    assert (recorder.threads, recorder.group) == ([thread], group)


def fail() -> None:
    """Fail as the first call after a kernel of CUDA that failed."""
    raise RuntimeError("an illegal memory access was encountered")


def test_an_error_after_the_average_is_raised_by_the_one_who_waits() -> None:
    compression: Any = Recorder()
    thread = CompressionThread(compression, CPU)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        thread.start(torch.zeros(2), PARTS, fail)()
    # The thread still serves, so that nobody waits for a later bucket either.
    with pytest.raises(RuntimeError, match="illegal memory access"):
        thread.start(torch.zeros(2), PARTS)()
    assert len(compression.threads) == 1


def test_a_tensor_that_cannot_be_a_result_is_an_error_for_ddp(monkeypatch: pytest.MonkeyPatch) -> None:
    class BrokenFuture(torch.futures.Future):
        def set_result(self, result: Any) -> None:
            if isinstance(result, torch.Tensor):
                fail()
            super().set_result(result)

    monkeypatch.setattr(torch.futures, "Future", BrokenFuture)
    compression: Any = Recorder()
    parameter = torch.zeros(2)
    bucket = SimpleNamespace(parameters=lambda: [parameter], buffer=lambda: torch.zeros(2))
    hook = CompressionHook(compression, {parameter: "weight"}, CPU)
    wait: Callable[[], Any] = hook.average(None, bucket).wait
    with pytest.raises(RuntimeError, match="illegal memory access"):
        wait()
