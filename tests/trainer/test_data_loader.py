"""The loader: prefetching threads, errors that surface at their batch, and a clean end."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from trainer.config.errors import ConfigError
from trainer.data.loader import Loader


class Numbers:
    """A data set whose samples are their own ids; it can block, fail and record the threads that fetch."""

    def __init__(self, length, gate=None, broken=None):
        self.length = length
        self.gate = gate
        self.broken = broken
        self.fetched_by = []

    def fetch(self, ids, epoch):
        self.fetched_by.append(threading.current_thread().name)
        if self.gate:
            self.gate.wait(240)
        if self.broken is not None and self.broken in ids:
            raise OSError(f"sample {self.broken} cannot be read")
        return {"inputs": ids.astype(np.float32)[:, None] * np.ones(3, np.float32), "targets": ids.copy()}


def list_data_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("data-")]


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_batches_are_the_same_for_any_number_of_threads(workers):
    loader = Loader(Numbers(50), 1, 8, workers=workers)
    batches = [next(loader) for _ in range(20)]
    loader.close()
    plain = Loader(Numbers(50), 1, 8, workers=0)
    for batch, expected in zip(batches, plain, strict=False):
        assert batch.tensors["inputs"].shape == (8, 3)
        assert batch.tensors["targets"].dtype == torch.int64
        assert torch.equal(batch.tensors["inputs"], expected.tensors["inputs"])
        assert batch.position == expected.position
    assert loader.position == 160


def test_a_batch_larger_than_the_data_set_spans_several_epochs():
    batch = next(Loader(Numbers(3), 1, 8, workers=0))
    assert [sorted(part) for part in np.split(batch.ids, [3, 6])[:2]] == [[0, 1, 2]] * 2
    assert batch.tensors["targets"].tolist() == batch.ids.tolist()


def test_no_more_batches_are_prefetched_than_configured():
    source = Numbers(1000)
    loader = Loader(source, 1, 4, workers=2, ahead=3)
    _until(lambda: len(source.fetched_by) == 3)
    time.sleep(0.05)
    assert len(source.fetched_by) == 3
    next(loader)
    _until(lambda: len(source.fetched_by) == 4)
    loader.close()


def test_threads_work_at_the_same_time():
    gate = threading.Event()
    source = Numbers(1000, gate)
    loader = Loader(source, 1, 4, workers=3, ahead=1)
    _until(lambda: len(set(source.fetched_by)) == 3)
    gate.set()
    assert next(loader).position == 4
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_a_thread_is_raised_at_its_batch_every_time(workers):
    plain = Loader(Numbers(40), 1, 4, workers=0)
    third = [next(plain) for _ in range(3)][2]
    loader = Loader(Numbers(40, broken=int(third.ids[1])), 1, 4, workers=workers)
    next(loader)
    next(loader)
    for _ in range(2):
        with pytest.raises(OSError, match=f"sample {third.ids[1]} cannot be read"):
            next(loader)
    assert loader.position == 8
    loader.close()


def test_close_ends_the_threads_and_the_iteration():
    loader = Loader(Numbers(40), 1, 4)
    next(loader)
    loader.close()
    assert list_data_threads() == []
    assert list(loader) == []


def test_threads_end_when_their_loader_is_collected():
    next(Loader(Numbers(40), 1, 4))
    gc.collect()
    _until(lambda: list_data_threads() == [])


def test_a_process_may_exit_without_closing_the_loader():
    code = (
        "from trainer.data.synthetic import Images\n"
        "from trainer.data.loader import Loader\n"
        "loader = Loader(Images(1000, 64, 10, 1), 1, 64, workers=4)\n"
        "print(next(loader).position)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, "64\n", "")


def test_an_empty_data_set_is_rejected():
    with pytest.raises(ConfigError, match="no samples"):
        Loader(Numbers(0), 1, 4)


def _until(condition, seconds=240):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_back_and_reads_the_share_of_another_rank(workers):
    loaders = [Loader(Numbers(40), 3, 8, dp_rank=rank, dp_size=2, workers=workers) for rank in range(2)]
    shares = [[next(loader).tensors for _ in range(4)] for loader in loaders]
    for number in range(4):
        other = loaders[0].read_share(8 * number, dp_rank=1)
        assert {name: value.tolist() for name, value in other.items()} == {
            name: value.tolist() for name, value in shares[1][number].items()
        }
    assert loaders[0].position == 32
    loaders[0].seek(8)
    assert [next(loaders[0]).tensors["targets"].tolist() for _ in range(3)] == [
        share["targets"].tolist() for share in shares[0][1:]
    ]
    for loader in loaders:
        loader.close()
    assert not list_data_threads()
