"""The error of a container that cannot start."""

from __future__ import annotations

import errno

# What the container's own files need: everything else is only read.
_FULL = (errno.ENOSPC, errno.EDQUOT)


class ContainerError(Exception):
    """A container cannot start: what is wrong, and how to fix it."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}. Fix: {fix}")


def explain_system_error(error: OSError, bundle: str) -> ContainerError:
    """Return the error of a container for one of the system, which names the file."""
    where = bundle if error.filename is None else error.filename
    what = f"the container cannot be prepared: {where}: {error.strerror or error}"
    if error.errno in _FULL:
        return ContainerError(what, "free space in /tmp of the node")
    if str(where).startswith("/tmp/"):  # noqa: S108
        return ContainerError(what, "make /tmp of the node writable for you")
    return ContainerError(what, f"everything in {bundle} must be there, and readable for you")
