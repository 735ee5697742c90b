"""Images that the pre-flight chose instead of AWS's newest: a file in MUSTER_HOME, which the Pulumi program reads."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from infra.home import Home, private_folder

FILE = "aws-fallback-images.json"


def read_fallbacks(cluster: str, region: str) -> dict[str, str]:
    """Return the images of a new cluster by kind of image; empty if it starts from AWS's newest ones."""
    images: dict[str, str] = _read().get(_key(cluster, region), {})
    return images


def store_fallbacks(cluster: str, region: str, images: Mapping[str, str]) -> None:
    """Store the images of a cluster in place of those of an earlier pre-flight."""
    stored, key = _read(), _key(cluster, region)
    if stored.get(key, {}) == dict(images):
        return
    entries = {name: entry for name, entry in stored.items() if name != key} | ({key: dict(images)} if images else {})
    path = _path()
    private_folder(path.parent)
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n")
    new.replace(path)


def _read() -> dict[str, dict[str, str]]:
    try:
        entries: dict[str, dict[str, str]] = json.loads(_path().read_text())
    except FileNotFoundError:
        return {}
    return entries


def _path() -> Path:
    return Home.of(os.environ).root / FILE


def _key(cluster: str, region: str) -> str:
    return f"{cluster} {region}"
