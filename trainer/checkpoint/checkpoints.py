"""A run's checkpoints as the training loop sees them: save beside training, find the newest good one, load it."""

from __future__ import annotations

import json
import queue
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.checkpoint import folder, load, newest, plan, retention, room
from trainer.checkpoint.event import Event
from trainer.checkpoint.group import Group
from trainer.checkpoint.job import Job
from trainer.checkpoint.newest import Found
from trainer.checkpoint.process import WriterProcess, fail
from trainer.checkpoint.stage import Stage

if TYPE_CHECKING:
    import torch

CLOSE_S = 600.0


class Checkpoints:
    """All ranks call `check_folder`, `prepare`, `save`, `newest` and `load` together; the rest is each rank's own."""

    def __init__(  # noqa: PLR0913 - one per setting
        self,
        path: Path | str,
        *,
        rank: int = 0,
        world_size: int = 1,
        group: Any = None,
        keep: int = 3,
        best: str = "",
        verify: str = "full",
        asynchronous: bool = True,
    ) -> None:
        self.path = Path(path).absolute()
        self._group = Group(rank, world_size, group)
        self._keep, self._best, self._verify, self._asynchronous = keep, best, verify, asynchronous
        self._plan: plan.Plan | None = None
        self._stage: Stage | None = None
        self._writer: WriterProcess | None = None
        self._replies: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._events: list[Event] = []
        self._run = ""
        # Saves are numbered, alike on all ranks, since a step can be saved again.
        self._saves = 0
        self._failed = 0
        self._pending: Job | None = None

    def check_folder(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Before the first step: can this state be saved there? What unfinished saves left is removed."""
        size = room.size_of(tensors, self._group)
        room.check(self.path, size, self._group)
        room.check_memory(size, self._group)
        if self._group.rank == 0:
            folder.sweep(self.path)

    def prepare(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Make buffer and writer now; else the first save does. Best after the first step: it takes a second or two."""
        self._ready(self._plan_for(tensors, changed=True), step=0)

    def save(
        self,
        step: int,
        tensors: Mapping[str, torch.Tensor],
        state: Mapping[str, Any],
        metric: float | None = None,
        own: Mapping[str, Any] | None = None,
    ) -> None:
        """Start a save and return; tensors may change after `before_update`. `own` is for this rank alone."""
        self._drain()
        changed = self._plan is None or plan.key_of(tensors) != self._plan.key
        any_changed, last_failed = self._group.highest([int(changed), self._failed])
        if self._pending is not None and self._writer is not None and last_failed >= self._saves:
            self._writer.abandon(self._pending.token)
        self.wait()
        wanted = self._plan_for(tensors, bool(any_changed))
        self._saves += 1
        self._pending = self._job(wanted, step, state, metric, own or {})
        self._start(self._pending, wanted, tensors)
        if not self._asynchronous:
            self.before_update()
            self.wait()

    def before_update(self) -> None:
        """Call before the optimizer changes anything: returns when the last save has its copy."""
        if self._stage is not None:
            self._stage.before_update()

    @property
    def busy(self) -> bool:
        """A save is under way; another would wait for it."""
        self._drain()
        return self._pending is not None

    def poll(self) -> list[Event]:
        """What happened since the last call; cheap enough for every step."""
        self._drain()
        events, self._events = self._events, []
        return events

    def wait(self, timeout: float | None = None) -> bool:
        """Until no save is under way; false if that took longer."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._pending is not None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                self._take(self._replies.get(timeout=left))
            except queue.Empty:
                return False
        return True

    def any_published(self) -> bool:
        return bool(self._group.from_first(lambda: folder.published(self.path)))

    def newest(self, before: int | None = None) -> Found | None:
        """The newest that is whole; `before` passes over this step and later ones."""
        return newest.newest(self.path, self._group, self._verify, before)

    def drop_after(self, step: int) -> None:
        """Later ones belong to a line that has ended: a resume must not find them."""
        self._group.from_first(lambda: retention.drop_after(self.path, step))

    def read_state(self, found: Found) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((found.path / folder.STATE).read_bytes())
        return state

    def read_own(self, found: Found) -> dict[str, Any] | None:
        """What this rank gave as its own; nothing where the world had another size, since ranks are others then."""
        if found.world_size != self._group.world_size:
            return None
        own: dict[str, Any] = json.loads((found.path / folder.own_name(self._group.rank)).read_bytes())
        return own

    def load(self, found: Found, tensors: Mapping[str, torch.Tensor], partial: bool = False) -> None:
        load.load(found.path, tensors, self._group, partial)

    def close(self) -> None:
        """Finish the save under way and end the writer."""
        self.wait(CLOSE_S)
        self._end()

    def _plan_for(self, tensors: Mapping[str, torch.Tensor], changed: bool) -> plan.Plan:
        if self._plan is None or changed:
            self._plan = plan.make(tensors, self._group)
            self._run = self._run or self._group.from_first(lambda: secrets.token_hex(4))
        return self._plan

    def _ready(self, wanted: plan.Plan, step: int) -> tuple[Stage, WriterProcess]:
        """A buffer that is large enough, and a living writer that reads it."""
        if self._stage is not None and self._stage.size < wanted.size:
            self._end()
        if self._stage is None:
            self._stage = Stage(wanted.size)
        if self._writer is not None and not self._writer.alive:
            self._writer.close()
            self._writer = None
            self._events.append(Event("restarted", step, "the writer process was gone; there is a new one"))
        if self._writer is None:
            self._writer = WriterProcess(self._stage.handle, self._replies)
        return self._stage, self._writer

    def _end(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._stage is not None:
            self._stage.close()
        self._writer, self._stage = None, None

    def _job(
        self, wanted: plan.Plan, step: int, state: Mapping[str, Any], metric: float | None, own: Mapping[str, Any]
    ) -> Job:
        rank = self._group.rank
        texts = {folder.own_name(rank): json.dumps(own)}
        if rank == 0:
            texts |= {folder.INDEX: wanted.index, folder.STATE: json.dumps(state)}
        return Job(
            directory=str(self.path),
            step=step,
            token=f"{self._run}-{self._saves}",
            rank=rank,
            world_size=self._group.world_size,
            size=wanted.size,
            texts=texts,
            metric=metric,
            keep=self._keep,
            best=self._best,
        )

    def _start(self, job: Job, wanted: plan.Plan, tensors: Mapping[str, torch.Tensor]) -> None:
        try:
            stage, writer = self._ready(wanted, job.step)
        except OSError as error:
            fail(job, f"no memory or no process for it: {error.strerror}", self._replies)
            return
        stage.fill(wanted, tensors, lambda bad: fail(job, bad, self._replies) if bad else writer.save(job))

    def _drain(self) -> None:
        while True:
            try:
                self._take(self._replies.get_nowait())
            except queue.Empty:
                return

    def _take(self, reply: Mapping[str, Any]) -> None:
        job = self._pending
        if job is None or reply["token"] != job.token:
            return
        self._pending = None
        if reply["kind"] == "failed":
            self._failed = self._saves
        message = _message(reply, job.step, self.path)
        self._events.append(Event(reply["kind"], job.step, message, reply["seconds"], reply["bytes"]))


def _message(reply: Mapping[str, Any], step: int, path: Path) -> str:
    if reply["kind"] == "failed":
        last = _last_good(path)
        return f"step {step} was NOT saved: {reply['reason']}; training goes on, {last}"
    size = f"{reply['bytes'] / 1e9:.2f} GB in {reply['seconds']:.1f} s"
    return f"step {step} {reply['kind']}: {size}"


def _last_good(path: Path) -> str:
    """A filesystem that fails a save may fail this too; training goes on all the same."""
    try:
        good = folder.published(path)
    except OSError as error:
        return f"whether there is an older checkpoint cannot be seen: {error.strerror}"
    return f"the last good checkpoint is {good[0].path.name}" if good else "there is no checkpoint yet"
