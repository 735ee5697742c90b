"""Check that output files can be written, before a long search rather than after it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trainer.config.errors import ConfigError, ConfigProblem


def check_file(where: str, out: Path, kinds: Sequence[str]) -> None:
    """Raise ConfigError if the suffix is not one of `kinds` or the file cannot be written; leave nothing behind."""
    if out.suffix not in kinds:
        message = f"{out.name!r}; allowed: a name that ends with {' or '.join(kinds)}"
        raise ConfigError([ConfigProblem(where, message, f"write for example {out.with_suffix(kinds[0]).name}")])
    if out.is_dir():
        raise ConfigError([ConfigProblem(where, f"{out} is a folder; allowed: a file", f"name a file in {out}")])
    if out.exists():
        if not os.access(out, os.W_OK):
            raise _error(where, out, "the file is not writable")
    elif not out.parent.is_dir():
        message = f"{out}; there is no folder {out.parent}; allowed: a file in an existing folder"
        raise ConfigError([ConfigProblem(where, message, f"create it: mkdir -p {out.parent}")])
    else:
        _try_writing(where, out, out.parent)


def check_folder(where: str, out: Path) -> None:
    """Raise ConfigError if the folder cannot be created or written to; leave nothing behind."""
    existing = next(place for place in (out, *out.absolute().parents) if place.exists())
    if not existing.is_dir():
        raise ConfigError(
            [ConfigProblem(where, f"{out}; {existing} is a file; allowed: a folder", "name another folder")]
        )
    _try_writing(where, out, existing)


def describe_failure(error: OSError) -> ConfigError:
    """Return the error of a write that failed despite the check, for example on a full disk."""
    where, message = str(error.filename or "output"), error.strerror or str(error)
    return ConfigError([ConfigProblem(where, message, "write to another place")])


def _try_writing(where: str, out: Path, folder: Path) -> None:
    # Permissions alone do not tell: a filesystem may be read-only, full or virtual.
    try:
        with tempfile.TemporaryDirectory(dir=folder):
            pass
    except OSError as error:
        raise _error(where, out, f"{folder}: {error.strerror}") from None


def _error(where: str, out: Path, why: str) -> ConfigError:
    message = f"{out} cannot be written ({why}); allowed: a writable place"
    return ConfigError([ConfigProblem(where, message, "name another place")])
