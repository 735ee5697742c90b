"""The shards of a data set as arrays: opened when they are first used, and downloaded before if they are remote."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from trainer.config.errors import ConfigError
from trainer.data.file_array import FileArray
from trainer.data.index import DTYPES, Index
from trainer.data.remote import TransientError
from trainer.data.shard_folder import REPAIR, CachedFolder, Reading, ShardFolder, count_bytes
from trainer.data.shard_order import list_upcoming

_REPORT_S = 10.0
_RECHECK_S = 0.5
_OUTAGE_S = 10.0
_GB = 10**9


class ShardArrays:
    """The tokens of each shard. Remote shards that are needed next are downloaded by a thread."""

    def __init__(self, folder: ShardFolder, contents: Index, reading: Reading) -> None:
        self._folder = folder
        self._contents = contents
        self._reading = reading
        # A file that was removed from a full cache takes space until it is closed.
        is_limited = reading.cache_bytes and reading.window
        self._max_arrays = 2 * reading.window if is_limited else len(contents.shards)
        self._arrays: OrderedDict[int, FileArray] = OrderedDict()
        self._lock = threading.Lock()
        self._ahead = _ReadAhead(folder, contents) if isinstance(folder, CachedFolder) else None
        if self._ahead:
            weakref.finalize(self, self._ahead.stop)

    @property
    def cache_bytes(self) -> int:
        """Space that copies of remote shards need: those of two windows, of which one is read ahead."""
        sizes = sorted(count_bytes(self._contents, shard) for shard in self._contents.shards)
        return sum(sizes[-2 * self._reading.window :]) if self._ahead else 0

    def __len__(self) -> int:
        return len(self._contents.shards)

    def __getitem__(self, number: int) -> FileArray:
        with self._lock:
            if number in self._arrays:
                self._arrays.move_to_end(number)
            else:
                self._arrays[number] = self._make_array(number)
                if len(self._arrays) > self._max_arrays:
                    self._arrays.popitem(last=False)
            return self._arrays[number]

    def read_ahead(self, number: int, epoch: int) -> None:
        """Start to download the shards that are needed next, given one that is in use now."""
        if self._ahead is None:
            return
        seed, window = self._reading.seed, self._reading.window
        self._ahead.follow(list_upcoming(seed, epoch, len(self), window, number) if window else range(len(self)))

    def _make_array(self, number: int) -> FileArray:
        shard, folder = self._contents.shards[number], self._folder
        size = count_bytes(self._contents, shard)
        dtype = np.dtype(DTYPES[self._contents.dtype])
        return FileArray(lambda: folder.get(shard, size), dtype, shard.tokens, fix=REPAIR)


class _ReadAhead:
    """A thread that downloads shards in a given order. The processes of a node share the work, each with a thread."""

    def __init__(self, folder: CachedFolder, contents: Index) -> None:
        self._folder = folder
        self._contents = contents
        self._numbers: Sequence[int] = ()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def follow(self, numbers: Sequence[int]) -> None:
        """Download these shards next, instead of those of an earlier call."""
        with self._lock:
            if numbers == self._numbers:
                return
            self._numbers = numbers
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="shards", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Download no more shards after the current one."""
        self._numbers = ()

    def _work(self) -> None:
        reported_at = time.monotonic()
        while True:
            numbers, present = self._numbers, set[int]()
            while len(present) < len(numbers) and self._numbers is numbers:
                for number in numbers:
                    try:
                        if number not in present and self._download(number):
                            present.add(number)
                    except TransientError:
                        time.sleep(_OUTAGE_S)  # the loader raises it if it needs the shard before the network is back
                        break
                    except (ConfigError, OSError):
                        # The loader gets the same error when it needs the shard, and raises it.
                        with self._lock:
                            self._thread = None
                        return
                    if self._numbers is not numbers:
                        break
                    if time.monotonic() - reported_at > _REPORT_S:
                        reported_at = time.monotonic()
                        self._report(numbers, present)
                else:
                    # The others are being downloaded by other processes.
                    time.sleep(_RECHECK_S if len(present) < len(numbers) else 0)
            with self._lock:
                if self._numbers is numbers:
                    self._thread = None
                    return

    def _download(self, number: int) -> bool:
        """Return whether a shard is present; download it before, unless another process is doing so."""
        shard = self._contents.shards[number]
        return not shard.tokens or self._folder.get_ahead(shard, count_bytes(self._contents, shard))

    def _report(self, numbers: Sequence[int], present: set[int]) -> None:
        if os.environ.get("LOCAL_RANK", "0") != "0":
            return
        sizes = {number: count_bytes(self._contents, self._contents.shards[number]) for number in numbers}
        amount = f"{sum(sizes[number] for number in present) / _GB:.1f} of {sum(sizes.values()) / _GB:.1f} GB"
        print(f"downloading shards: {len(present)} of {len(numbers)}, {amount}", file=sys.stderr, flush=True)
