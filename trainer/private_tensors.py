"""Tensors of a checkpoint that belong to one rank: their names, and which of them a resumed run leaves out."""

from __future__ import annotations

from collections.abc import Container, Iterable

from trainer.parallel.units import list_names

PRIVATE = "private."


def name_private(rank: int, name: str) -> str:
    """Return the name of a rank's tensor in a checkpoint."""
    return f"{PRIVATE}{rank:05d}.{name}"


def describe_left_out(saved: Iterable[str], rank: int, loaded: Container[str], *, is_same_layout: bool) -> str:
    """Return a line for the log if the checkpoint has private tensors that a rank does not load, else an empty text.

    `saved` are all names of the checkpoint. In another layout no rank loads any of them.
    """
    own = name_private(rank, "")
    prefix, reason = PRIVATE, "the ranks are laid out differently now"
    if is_same_layout:
        prefix, reason = own, "this run does not use them"
    left_out = [name[len(own) :] for name in saved if name.startswith(prefix) and name not in loaded]
    if not left_out:
        return ""
    return f"not restored, because {reason}: {list_names(list(dict.fromkeys(left_out)))}"
