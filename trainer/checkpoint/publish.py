"""Rank 0's part of a save: wait until every rank has written, then publish the checkpoint by a single rename."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

from trainer.checkpoint import folder, manifest, retention
from trainer.checkpoint.job import SaveAbandoned, SaveJob
from trainer.checkpoint.read_retry import UnreadableCheckpoint

RANKS_TIMEOUT_S = 1800.0
_MAX_NAMED_RANKS = 8


def publish(job: SaveJob, abandoned: set[str]) -> int:
    """Publish the checkpoint once all ranks have written, and return its size in bytes.

    `abandoned` holds the tokens of saves that have failed on another rank and need not be waited for.
    """
    files = _wait_for_ranks(job, abandoned)
    whole = manifest.Manifest(job.step, job.world_size, job.token, job.metric, files, job.best)
    folder.write_file(job.partial / folder.MANIFEST, manifest.encode_manifest(whole))
    folder.sync_folder(job.partial)
    folder.publish_partial(job.folder, job.partial, job.step, job.fence)
    # The checkpoint is published. If an old one cannot be removed, this save has not failed; the next one tries again.
    with suppress(OSError, UnreadableCheckpoint):
        retention.prune(job.folder, job.step, job.keep, job.best, job.discarded, job.fence)
    return whole.size


def _wait_for_ranks(job: SaveJob, abandoned: set[str]) -> dict[str, manifest.FileChecksum]:
    files: dict[str, manifest.FileChecksum] = {}
    missing = set(range(job.world_size))
    deadline, pause = time.monotonic() + RANKS_TIMEOUT_S, 0.002
    while True:
        _collect_reports(job, missing, files)
        if not missing:
            return files
        if job.token in abandoned:
            raise SaveAbandoned("another rank could not write its part")
        if time.monotonic() > deadline:
            reason = f"no report within {RANKS_TIMEOUT_S:g} s from the writers of {_name_ranks(missing)}"
            raise SaveAbandoned(reason, min(missing) if len(missing) == 1 else None)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)


def _collect_reports(job: SaveJob, missing: set[int], files: dict[str, manifest.FileChecksum]) -> None:
    # NFS clients cache directory listings for up to a minute; touching the directory makes them read it again.
    os.utime(job.partial)
    for name in os.listdir(job.partial):
        kind, _, rank = name.removesuffix(".json").partition("-")
        if kind not in ("done", "failed") or not name.endswith(".json"):
            continue
        content = json.loads((job.partial / name).read_bytes())
        if kind == "failed":
            raise SaveAbandoned(content["reason"], int(rank))
        files.update({key: manifest.FileChecksum(file["size"], tuple(file["sha256"])) for key, file in content.items()})
        missing.discard(int(rank))
        (job.partial / name).unlink()


def _name_ranks(ranks: set[int]) -> str:
    names = ", ".join(str(rank) for rank in sorted(ranks)[:_MAX_NAMED_RANKS])
    return f"rank{'s' if len(ranks) > 1 else ''} {names}{', …' if len(ranks) > _MAX_NAMED_RANKS else ''}"
