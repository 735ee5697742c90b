"""The checkpoints of a run as the training loop uses them: save while training, find the newest good one, load it."""

from __future__ import annotations

import json
import queue
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.checkpoint import confirmed, folder, retention, space
from trainer.checkpoint.channel import SaveChannel
from trainer.checkpoint.fence import Fence
from trainer.checkpoint.group import RankGroup
from trainer.checkpoint.job import SaveEvent, SaveJob
from trainer.checkpoint.load import load_tensors, read_index, read_json
from trainer.checkpoint.newest import GoodCheckpoint, find_newest
from trainer.checkpoint.plan import SavePlan, make_key, make_plan
from trainer.checkpoint.probe import estimate_save_s
from trainer.checkpoint.weight_formats import choose_sources

if TYPE_CHECKING:
    import torch

SAVE_TIMEOUT_S = 600.0


class Checkpoints:
    """The checkpoints in one folder.

    All ranks call `check_folder`, `prepare`, `save`, `newest`, `load`, `any_published`, `remove_after`, the methods
    about confirmed checkpoints and those that read together; the other methods concern only the rank that calls them.
    """

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
        self._group = RankGroup(rank, world_size, group)
        self._keep, self._best, self._verify, self._asynchronous = keep, best, verify, asynchronous
        self.expected_save_s = 0.0
        """Estimated duration of the first save, once the folder has been checked."""
        self._plan: SavePlan | None = None
        self._channel = SaveChannel()
        self._events: list[SaveEvent] = []
        self._run_token = ""
        # Saves are numbered, with the same numbers on all ranks, because a step can be saved again.
        self._last_save = 0
        self._last_failed_save = 0
        self._pending: SaveJob | None = None
        self._fence = Fence()
        self._discarded: set[int] = set()
        """Steps that may be removed although they are later than the one that is saved."""
        self._resumed_step = 0
        """The step at which this attempt of the run began."""

    def hold(self, fence: Fence) -> None:
        """Change the folder only while this run owns it; every rank must call it before it looks for a checkpoint.

        Rank 0 has the proof. What earlier owners have not published by now can no longer be published.
        """
        self._fence = fence
        self._group.run_on_first(lambda: folder.remove_leftovers(self.path, epoch=fence.epoch))

    def check_folder(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Check before the first step that these tensors can be saved, and how fast; remove what saves left behind."""
        size = space.compute_checkpoint_size(tensors, self._group)
        space.check_disk(self.path, size, self._group)
        space.check_memory(size, self._group)
        self.expected_save_s = estimate_save_s(self.path, size, self._group)
        self._group.run_on_first(lambda: folder.remove_leftovers(self.path, epoch=self._fence.epoch))

    def prepare(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Create the buffer and the writer ahead of the first save; this takes a second, so call it after a step."""
        plan = self._make_plan(tensors, is_changed=True)
        if self._channel.prepare(plan.size):
            self._note_restart(step=0)

    def save(  # noqa: PLR0913 - what is saved, and how long it may take
        self,
        step: int,
        tensors: Mapping[str, torch.Tensor],
        state: Mapping[str, Any],
        metric: float | None = None,
        own: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = SAVE_TIMEOUT_S,
    ) -> None:
        """Start a save and return; the tensors may change after `before_update`. `own` is state of this rank only.

        An earlier save, and this one if saves are synchronous, may take `timeout_s` seconds. If the earlier save takes
        longer on any rank, this one fails on all of them.
        """
        deadline = time.monotonic() + timeout_s
        is_changed = self._plan is None or make_key(tensors) != self._plan.key
        flags = [int(is_changed), int(self.busy), self._last_failed_save]
        is_changed_anywhere, is_busy_anywhere, last_failed_save = self._group.maximum(flags)
        if self._pending is not None and last_failed_save >= self._last_save:
            self._channel.abandon(self._pending.token)
        if is_busy_anywhere and self._group.maximum([int(not self.wait(timeout_s))])[0]:
            self._report_blocked_save(step, timeout_s)
            return
        plan = self._make_plan(tensors, bool(is_changed_anywhere))
        self._last_save += 1
        self._pending = self._make_job(plan, step, state, metric, own or {})
        if self._channel.start(self._pending, plan, tensors):
            self._note_restart(step)
        if not self._asynchronous:
            self.before_update()
            self.wait(max(0.0, deadline - time.monotonic()))

    def before_update(self) -> None:
        """Wait until the last save has copied the tensors; call it before the optimizer changes anything."""
        self._channel.before_update()

    @property
    def busy(self) -> bool:
        """Whether a save is under way; another one would wait for it."""
        self._read_replies()
        return self._pending is not None

    def poll(self) -> list[SaveEvent]:
        """Return the events since the last call; cheap enough for every step."""
        self._read_replies()
        events, self._events = self._events, []
        return events

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no save is under way; return False if that takes longer than `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._pending is not None:
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                self._process_reply(self._channel.replies.get(timeout=remaining))
            except queue.Empty:
                return False
        return True

    def any_published(self) -> bool:
        """Return whether the folder has any checkpoint."""
        return bool(self._group.run_on_first(lambda: bool(folder.list_published(self.path))))

    def newest(self, before: int | None = None) -> GoodCheckpoint | None:
        """Return the newest intact checkpoint; `before` excludes this step and later ones."""
        checkpoint = find_newest(self.path, self._group, self._verify, before)
        if checkpoint is not None:
            self._discarded.update(checkpoint.skipped_steps)
        return checkpoint

    def remove_after(self, step: int) -> None:
        """Remove later checkpoints: they belong to a history that has ended, and a resume must not find them."""
        self._discarded.update(self._group.run_on_first(lambda: retention.remove_after(self.path, step, self._fence)))

    def confirm(self, step: int) -> str:
        """Record that the checkpoints up to this step are right, also one that is still being written.

        Return why that failed, empty if it did not: an older confirmation is no reason to end a run.
        """

        def write() -> str:
            try:
                confirmed.write_confirmed(self.path, step, self._fence)
            except OSError as error:
                return str(error)
            return ""

        return str(self._group.run_on_first(write))

    def continue_confirmed(self, step: int, *, is_used: bool) -> None:
        """Take over the record of confirmed checkpoints at the start of a run that continues at `step`, or drop it."""
        self._resumed_step = step
        if is_used:
            self._group.run_on_first(lambda: confirmed.limit_confirmed(self.path, step, self._fence))
        else:
            self._group.run_on_first(lambda: confirmed.forget_confirmed(self.path, self._fence))

    def newest_confirmed(self) -> GoodCheckpoint | None:
        """Return the newest intact checkpoint that is confirmed, or None."""
        step = self._group.run_on_first(lambda: confirmed.read_confirmed(self.path))
        return None if step is None else self.newest(before=step + 1)

    def set_aside_unconfirmed(self) -> list[int]:
        """Rename the checkpoints that are not confirmed, so that no resume finds them, and return their steps."""
        steps: list[int] = self._group.run_on_first(
            lambda: confirmed.set_aside_unconfirmed(self.path, self._fence, self._resumed_step)
        )
        return steps

    def read_state(self, checkpoint: GoodCheckpoint) -> dict[str, Any]:
        """Return the state that was saved with a checkpoint; every rank must call it."""
        state: dict[str, Any] = read_json(checkpoint.path / folder.STATE, self._group)
        return state

    def read_own(self, checkpoint: GoodCheckpoint) -> dict[str, Any] | None:
        """Return the state of this rank only, or None if the number of ranks has changed since the save.

        Every rank must call it.
        """
        if checkpoint.world_size != self._group.world_size:
            return None
        own: dict[str, Any] = read_json(checkpoint.path / folder.own_name(self._group.rank), self._group)
        return own

    def load(self, checkpoint: GoodCheckpoint, tensors: Mapping[str, torch.Tensor], partial: bool = False) -> str:
        """Load into these tensors in place; `partial` allows the checkpoint to contain other tensors too.

        Return a line for the log if weights had to be converted. Parameters that have fp32 copies must be set to them
        afterwards.
        """
        sources = choose_sources(self.read_types(checkpoint), tensors)
        load_tensors(checkpoint.path, sources.targets, self._group, partial, sources.ignored)
        return sources.note

    def read_types(self, checkpoint: GoodCheckpoint) -> dict[str, str]:
        """Return the type of each tensor of a checkpoint, as safetensors files name it; every rank must call it."""
        return {name: entry["dtype"] for name, entry in read_index(checkpoint.path, self._group).items()}

    def close(self, timeout_s: float = SAVE_TIMEOUT_S) -> None:
        """Wait up to `timeout_s` seconds for the save under way, and end the writer."""
        self.wait(timeout_s)
        self._channel.close()

    def _make_plan(self, tensors: Mapping[str, torch.Tensor], is_changed: bool) -> SavePlan:
        if self._plan is None or is_changed:
            self._plan = make_plan(tensors, self._group)
            self._run_token = self._run_token or self._group.run_on_first(self._make_token)
        return self._plan

    def _make_job(
        self, plan: SavePlan, step: int, state: Mapping[str, Any], metric: float | None, own: Mapping[str, Any]
    ) -> SaveJob:
        rank = self._group.rank
        texts = {folder.own_name(rank): json.dumps(own), **plan.index}
        if rank == 0:
            texts[folder.STATE] = json.dumps(state)
        return SaveJob(
            directory=str(self.path),
            step=step,
            token=f"{self._run_token}-{self._last_save}",
            rank=rank,
            world_size=self._group.world_size,
            size=plan.size,
            texts=texts,
            metric=metric,
            keep=self._keep,
            best=self._best,
            discarded=sorted(self._discarded),
            fence=self._fence,
        )

    def _make_token(self) -> str:
        return f"e{self._fence.epoch}-{secrets.token_hex(4)}"

    def _report_blocked_save(self, step: int, timeout_s: float) -> None:
        blocking = "another rank's" if self._pending is None else f"that of step {self._pending.step}"
        reason = f"an earlier save, {blocking}, has not ended within {timeout_s:g} s"
        failed_rank = None if self._pending is None else self._group.rank
        message = _format_failure(step, reason, self.path)
        self._events.append(SaveEvent("failed", step, message, reason=reason, failed_rank=failed_rank))

    def _note_restart(self, step: int) -> None:
        self._events.append(SaveEvent("restarted", step, "the writer process had died and was restarted"))

    def _read_replies(self) -> None:
        while True:
            try:
                self._process_reply(self._channel.replies.get_nowait())
            except queue.Empty:
                return

    def _process_reply(self, reply: Mapping[str, Any]) -> None:
        job = self._pending
        if job is None or reply["token"] != job.token:
            return
        self._pending = None
        if reply["kind"] == "failed":
            self._last_failed_save = self._last_save
        message = _format_reply(reply, job, self.path)
        self._events.append(
            SaveEvent(
                reply["kind"],
                job.step,
                message,
                reply["seconds"],
                reply["bytes"],
                reason=reply["reason"],
                failed_rank=reply["failed_rank"],
            )
        )


def _format_reply(reply: Mapping[str, Any], job: SaveJob, path: Path) -> str:
    if reply["kind"] == "failed":
        is_own = reply["failed_rank"] in (None, job.rank)
        reason = reply["reason"] if is_own else f"rank {reply['failed_rank']}: {reply['reason']}"
        return _format_failure(job.step, reason, path)
    size = f"{reply['bytes'] / 1e9:.2f} GB in {reply['seconds']:.1f} s"
    return f"step {job.step} {reply['kind']}: {size}"


def _format_failure(step: int, reason: str, path: Path) -> str:
    return f"step {step} was NOT saved: {reason}; training continues, {_describe_last_good(path)}"


def _describe_last_good(path: Path) -> str:
    """Name the last good checkpoint. A filesystem that fails a save may fail this too; training continues anyway."""
    try:
        published = folder.list_published(path)
    except OSError as error:
        return f"older checkpoints cannot be listed: {error.strerror}"
    return f"the last good checkpoint is {published[0].path.name}" if published else "there is no checkpoint yet"
