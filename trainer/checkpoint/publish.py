"""Rank 0's part of a save: wait until every rank has written, then make the checkpoint visible in one move."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

from trainer.checkpoint import folder, manifest, retention
from trainer.checkpoint.job import Abandoned, Job

GIVE_UP_S = 1800.0


def publish(job: Job, abandoned: set[str]) -> int:
    """How many bytes the published checkpoint has."""
    files = _gather(job, abandoned)
    whole = manifest.Manifest(job.step, job.world_size, job.token, job.metric, files)
    folder.write(job.partial / folder.MANIFEST, manifest.to_bytes(whole))
    folder.sync(job.partial)
    folder.put(job.folder, job.partial, job.step)
    # The checkpoint is there; an old one that resists removal is no failure of this save and is tried again.
    with suppress(OSError):
        retention.prune(job.folder, job.step, job.keep, job.best)
    return whole.size


def _gather(job: Job, abandoned: set[str]) -> dict[str, manifest.FileSum]:
    files: dict[str, manifest.FileSum] = {}
    missing = set(range(job.world_size))
    deadline, pause = time.monotonic() + GIVE_UP_S, 0.002
    while True:
        _look(job, missing, files)
        if not missing:
            return files
        if job.token in abandoned:
            raise Abandoned("another rank could not write its part")
        if time.monotonic() > deadline:
            raise Abandoned(f"no word for {GIVE_UP_S:g} s from the writers of {_ranks(missing)}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)


def _look(job: Job, missing: set[int], files: dict[str, manifest.FileSum]) -> None:
    # NFS clients remember for up to a minute what a directory lacks; a change of their own makes them ask again.
    os.utime(job.partial)
    for name in os.listdir(job.partial):
        word, _, rest = name.removesuffix(".json").partition("-")
        if word not in ("done", "failed") or not name.endswith(".json"):
            continue
        content = json.loads((job.partial / name).read_bytes())
        if word == "failed":
            raise Abandoned(f"rank {int(rest)}: {content['reason']}")
        files.update({key: manifest.FileSum(file["size"], tuple(file["sha256"])) for key, file in content.items()})
        missing.discard(int(rest))
        (job.partial / name).unlink()


def _ranks(ranks: set[int]) -> str:
    first = ", ".join(str(rank) for rank in sorted(ranks)[:8])
    return f"rank{'s' if len(ranks) > 1 else ''} {first}{', …' if len(ranks) > 8 else ''}"  # noqa: PLR2004
