"""Where Pulumi's state is stored: objects under keys, in a folder or in the cloud of a target that stores states."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote


@dataclass(frozen=True)
class Version:
    """A version of an object that the store still has."""

    id: str
    at: datetime
    size: int
    is_latest: bool


class StateStore(ABC):
    """Objects under keys. Methods raise Stop, with the fix, if the store cannot be used."""

    url: str
    """As a person writes it."""
    secrets_provider: str = ""
    """Pulumi's URL of the key that encrypts the secrets of new stacks; empty for a passphrase."""

    @property
    @abstractmethod
    def backend_url(self) -> str:
        """The URL that Pulumi uses."""

    @abstractmethod
    def check(self) -> None:
        """Raise Stop if the store does not exist or cannot be used."""

    @abstractmethod
    def list_tags(self, prefix: str) -> dict[str, str]:
        """Return the keys that start with `prefix`, each with a tag that changes with its content."""

    @abstractmethod
    def read(self, key: str, version: str = "") -> bytes | None:
        """Return an object, by default its latest version; None if there is none."""

    @abstractmethod
    def write(self, key: str, data: bytes) -> None:
        """Write an object; readers see either the old or the new one."""

    @abstractmethod
    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless the key exists; return whether it was written."""

    @abstractmethod
    def remove(self, key: str) -> None:
        """Remove an object; a store with versions keeps the old ones."""

    @abstractmethod
    def versions(self, key: str) -> Sequence[Version]:
        """Return the versions of an object, newest first; none if the store has no versions."""


class FolderStore(StateStore):
    """A folder on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = str(folder)

    @property
    def backend_url(self) -> str:
        # Without `metadata=skip` each state file has an attributes file next to it. If a killed `up` leaves one
        # incomplete, every later command fails with "failed to load checkpoint: EOF".
        return f"file://{quote(str(self.folder))}?metadata=skip"

    def check(self) -> None:
        """Do nothing: the folder is created when it is needed."""

    def list_tags(self, prefix: str) -> dict[str, str]:
        files = (path for path in self.folder.rglob("*") if path.is_file())
        keys = {path.relative_to(self.folder).as_posix(): path for path in files}
        return {key: sha256(path.read_bytes()).hexdigest() for key, path in keys.items() if key.startswith(prefix)}

    def read(self, key: str, version: str = "") -> bytes | None:  # noqa: ARG002  # a folder has no versions
        try:
            return (self.folder / key).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, key: str, data: bytes) -> None:
        replace_file(self.folder / key, data)

    def create(self, key: str, data: bytes) -> bool:
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = path.with_name(f".{path.name}.{os.getpid()}")
        new.write_bytes(data)
        try:
            os.link(new, path)
        except FileExistsError:
            return False
        finally:
            new.unlink()
        return True

    def remove(self, key: str) -> None:
        (self.folder / key).unlink(missing_ok=True)

    def versions(self, key: str) -> Sequence[Version]:  # noqa: ARG002  # a folder has no versions
        return ()


def replace_file(path: Path, data: bytes) -> None:
    """Write a file atomically, readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    new.replace(path)
