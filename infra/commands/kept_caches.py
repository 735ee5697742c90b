"""What outlives a cluster on purpose, with sizes; and how to drop it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from infra.engine.stop import Stop
from infra.home import Home
from infra.plan import names
from infra.providers import engine_client
from infra.receipt import Kept


def caches(home: Home) -> tuple[Kept, ...]:
    api = engine_client.connect()
    return (*_images(api), *_volumes(api), *_folders(home))


def drop(home: Home) -> tuple[Kept, ...]:
    """Removes them all; refuses while a cluster uses one."""
    api = engine_client.connect()
    users = [c["Names"][0].lstrip("/") for c in api.containers(all=True, filters={"label": names.CLUSTER})]
    if users:
        raise Stop(f"caches are in use by {len(users)} nodes: {', '.join(sorted(users)[:5])}", "make teardown")
    gone = caches(home)
    for kept in gone:
        if kept.what.endswith("image"):
            api.remove_image(kept.name, force=True)
        elif kept.what.endswith("volume"):
            api.remove_volume(kept.name, force=True)
        else:
            shutil.rmtree(kept.name)
    return gone


def _images(api: Any) -> list[Kept]:
    found = {tag: image["Size"] for image in api.images() for tag in image["RepoTags"] or []}
    wanted = {names.IMAGE: "node image", names.BASE_IMAGE: "base image"}
    return [Kept(what, name, found[name]) for name, what in wanted.items() if name in found]


def _volumes(api: Any) -> list[Kept]:
    """Docker measures volumes only with everything else, in seconds: the files are measured instead."""
    found = [v for v in api.volumes()["Volumes"] or [] if v["Name"] == names.ENV_CACHE_VOLUME]
    return [Kept("training environment volume", v["Name"], _tree_size(Path(v["Mountpoint"]))) for v in found]


def _folders(home: Home) -> list[Kept]:
    return [Kept("tools folder", str(home.cache), _tree_size(home.cache))] if home.cache.exists() else []


def _tree_size(root: Path) -> int | None:
    try:
        done = subprocess.run(["du", "-s", "-B1", str(root)], capture_output=True, text=True, timeout=5, check=False)
    except subprocess.TimeoutExpired:
        return None
    return int(done.stdout.split()[0]) if done.returncode == 0 else None
