"""The environment of a task in a container: that of the step, changed by the image's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# The user's own wherever the task runs. An image's HOME belongs to its own user.
_OF_THE_USER = frozenset({"HOME", "USER", "LOGNAME"})
# Paths on the node or the login node, whose libraries the image's programs must not load.
_OF_THE_NODE = frozenset({"PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "SLURM_CONF", "SLURM_CONF_SERVER"})
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def merge_environment(
    step: Mapping[str, str], image: Mapping[str, str], libraries: Sequence[str] = (), programs: Sequence[str] = ()
) -> dict[str, str]:
    """Return the variables of a task; `libraries` and `programs` are folders with what the node adds to the image."""
    merged = {name: value for name, value in step.items() if name not in _OF_THE_NODE}
    merged |= {name: value for name, value in image.items() if name not in _OF_THE_USER or name not in step}
    merged["PATH"] = ":".join([image.get("PATH") or DEFAULT_PATH, *programs])
    if libraries:
        merged["LD_LIBRARY_PATH"] = ":".join([*libraries, *filter(None, [image.get("LD_LIBRARY_PATH")])])
    return merged
