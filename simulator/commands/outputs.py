"""Whether files can be written where they are asked for: said before a search, not after it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trainer.config.errors import ConfigError, ConfigProblem


def check_file(where: str, out: Path, kinds: Sequence[str]) -> None:
    """Raises ConfigError where the name has another ending, or nothing can be written there; leaves nothing behind."""
    if out.suffix not in kinds:
        message = f"{out.name!r}; allowed: a name that ends with {' or '.join(kinds)}"
        raise ConfigError([ConfigProblem(where, message, f"write for example {out.with_suffix(kinds[0]).name}")])
    if out.is_dir():
        raise ConfigError([ConfigProblem(where, f"{out} is a folder; allowed: a file", f"name a file in {out}")])
    if out.exists():
        if not os.access(out, os.W_OK):
            raise _refused(where, out, "the file may not be written")
    elif not out.parent.is_dir():
        message = f"{out}; there is no folder {out.parent}; allowed: a file in a folder that exists"
        raise ConfigError([ConfigProblem(where, message, f"make it with: mkdir -p {out.parent}")])
    else:
        _try(where, out, out.parent)


def check_folder(where: str, out: Path) -> None:
    """As `check_file`, for a folder that is made where it is missing."""
    above = next(place for place in (out, *out.absolute().parents) if place.exists())
    if not above.is_dir():
        raise ConfigError([ConfigProblem(where, f"{out}; {above} is a file; allowed: a folder", "name another one")])
    _try(where, out, above)


def failed(bad: OSError) -> ConfigError:
    """What went wrong all the same, such as a disk that ran full meanwhile."""
    return ConfigError([ConfigProblem(str(bad.filename or "output"), bad.strerror or str(bad), "write somewhere else")])


def _try(where: str, out: Path, folder: Path) -> None:
    # Permissions do not say it all: filesystems may be read-only, full or made up by the kernel.
    try:
        with tempfile.TemporaryDirectory(dir=folder):
            pass
    except OSError as bad:
        raise _refused(where, out, f"{folder}: {bad.strerror}") from None


def _refused(where: str, out: Path, why: str) -> ConfigError:
    message = f"{out} cannot be written ({why}); allowed: a place that you may write to"
    return ConfigError([ConfigProblem(where, message, "name another one")])
