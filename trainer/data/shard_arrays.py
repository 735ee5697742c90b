"""The shards of a data set as arrays: mapped when they are first used, and downloaded before if they are remote."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainer.config.errors import ConfigError
from trainer.data.index import DTYPES, Index
from trainer.data.remote import TransientError
from trainer.data.shard_folder import CachedFolder, Reading, ShardFolder, count_bytes
from trainer.data.shard_order import list_upcoming

Tokens = NDArray[np.unsignedinteger]

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
        # A file that was removed from a full cache takes space until it is unmapped.
        is_limited = reading.cache_bytes and reading.window
        self._max_mapped = 2 * reading.window if is_limited else len(contents.shards)
        self._mapped: OrderedDict[int, Tokens] = OrderedDict()
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

    def __getitem__(self, number: int) -> Tokens:
        with self._lock:
            if number in self._mapped:
                self._mapped.move_to_end(number)
                return self._mapped[number]
        # Without the lock: a download may take minutes, and other threads can work with other shards meanwhile.
        array = self._map(number)
        with self._lock:
            self._mapped[number] = array
            while len(self._mapped) > self._max_mapped:
                self._mapped.popitem(last=False)
        return array

    def read_ahead(self, number: int, epoch: int) -> None:
        """Start to download the shards that are needed next, given one that is in use now."""
        if self._ahead is None:
            return
        seed, window = self._reading.seed, self._reading.window
        self._ahead.follow(list_upcoming(seed, epoch, len(self), window, number) if window else range(len(self)))

    def _map(self, number: int) -> Tokens:
        shard, dtype = self._contents.shards[number], DTYPES[self._contents.dtype]
        if not shard.tokens:
            return np.empty(0, dtype)  # an empty file cannot be mapped
        while True:
            path = self._folder.get(shard, count_bytes(self._contents, shard))
            try:
                return np.memmap(path, dtype, mode="r")
            except FileNotFoundError:
                if self._ahead is None:
                    raise
                # Another process has removed it from a full cache at this moment; it is downloaded again.


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
