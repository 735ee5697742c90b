"""The caches that outlive clusters: their sizes and their removal."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

from cluster import names
from cluster.plural import format_count
from cluster.spec.model import SlurmRelease
from infra.engine.command_line import format_command
from infra.engine.stop import Stop
from infra.home import DEFAULT_STACK, Home
from infra.receipt import CacheEntry
from infra.targets.local import docker_engine as engine_client

# What set-up puts into MUSTER_CACHE, a folder that may hold other files. Its lock and the process id of an engine
# that it started are not removed: both may be in use.
_OURS = ("pulumi", "tmp", "logs", "env.json")


def caches(home: Home) -> tuple[CacheEntry, ...]:
    """Return the images, volumes and folders that outlive clusters."""
    with engine_client.api_session("caches") as api:
        return (*_shared(api, home), *_built_images(api))


def drop(home: Home) -> tuple[CacheEntry, ...]:
    """Remove the caches that set-up builds again and return them; raise Stop while a cluster uses them."""
    with engine_client.api_session("caches") as api:
        users = {
            container["Names"][0].lstrip("/"): container["Labels"].get(names.STACK, DEFAULT_STACK)
            for container in api.containers(all=True, filters={"label": names.CLUSTER})
        }
        if users:
            fix = " and ".join(format_command("teardown", stack) for stack in sorted(set(users.values())))
            raise Stop(f"caches are in use by {format_count(len(users), 'node')}: {', '.join(sorted(users)[:5])}", fix)
        gone = _shared(api, home)
        for entry in gone:
            if entry.what.endswith("image"):
                api.remove_image(entry.name, force=True)
            elif entry.what.endswith("volume"):
                api.remove_volume(entry.name, force=True)
    remove_tools(home)
    return gone


def remove_tools(home: Home) -> None:
    """Remove the files of set-up, and the folder itself if it is then empty."""
    for path in _tools(home):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    with suppress(OSError):
        home.cache.rmdir()


def measure_folders(*roots: Path) -> int | None:
    """Return the bytes that folders occupy; None if they cannot be read, or not within seconds."""
    line = ["du", "-s", "-c", "-B1", *map(str, roots)]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=5, check=False)
    except subprocess.TimeoutExpired:
        return None
    return int(done.stdout.splitlines()[-1].split()[0]) if done.returncode == 0 else None


def _shared(api: Any, home: Home) -> tuple[CacheEntry, ...]:
    return (*_images(api), *_volumes(api), *_folders(home))


def _built_images(api: Any) -> list[CacheEntry]:
    """Return the images that `muster image build` built from this MUSTER_HOME: stack files may name them."""
    listed = api.images(filters={"label": names.CLUSTER, "reference": names.BAKED_IMAGE})
    title = "built image (`muster image remove` deletes it)"
    own_images = [row for row in listed if not engine_client.is_foreign(row["Labels"])]
    return [CacheEntry(title, tag, row["Size"]) for row in own_images for tag in row["RepoTags"] or ()]


def _images(api: Any) -> list[CacheEntry]:
    sizes = {tag: image["Size"] for image in api.images() for tag in image["RepoTags"] or []}
    titles = {names.image(release): "node image" for release in get_args(SlurmRelease)}
    titles |= {names.BASE_IMAGE: "base image"}
    return [CacheEntry(title, name, sizes[name]) for name, title in titles.items() if name in sizes]


def _volumes(api: Any) -> list[CacheEntry]:
    """Return the cached volumes; their files are measured because Docker takes seconds to measure everything."""
    volumes = [v for v in api.volumes()["Volumes"] or [] if v["Name"] == names.ENV_CACHE_VOLUME]
    return [
        CacheEntry("training environment volume", v["Name"], measure_folders(Path(v["Mountpoint"]))) for v in volumes
    ]


def _folders(home: Home) -> list[CacheEntry]:
    tools = _tools(home)
    return [CacheEntry("tools folder", str(home.cache), measure_folders(*tools))] if tools else []


def _tools(home: Home) -> list[Path]:
    return [path for path in (home.cache / name for name in _OURS) if path.exists() or path.is_symlink()]
