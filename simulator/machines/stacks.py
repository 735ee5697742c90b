"""Stack files by name, and which of their groups is planned for."""

from __future__ import annotations

from pathlib import Path

from cluster.spec import ClusterSpec, SpecError
from cluster.spec.load import read
from simulator.machines.stack_names import file_of, meant, names
from trainer.config.errors import ConfigError, ConfigProblem

MOST_NODES = 1024
"""As many as a group of a stack may have."""


def find(word: str) -> Path:
    """A file, or the name of one in stacks/."""
    if word.endswith((".yaml", ".yml")) and Path(word).is_file():
        return Path(word)
    if file := file_of(word):
        return file
    fix = f"did you mean {' or '.join(meant(word))}?" if meant(word) else "name one of them, or a stack file"
    raise ConfigError([ConfigProblem("stack", f"{word!r} is not known; allowed: {', '.join(names())}", fix)])


def any_spec_of(file: Path) -> ClusterSpec:
    """Of any target."""
    try:
        return read(file)
    except SpecError as bad:
        raise ConfigError(
            [ConfigProblem(f"stack: {issue.where}", issue.message, issue.fix) for issue in bad.issues]
        ) from None


def spec_of(file: Path) -> ClusterSpec:
    """Of one whose machines are in the catalog."""
    spec = any_spec_of(file)
    if spec.target != "aws" or spec.aws is None:
        message = f"target {spec.target} has neither instance types nor prices; allowed: aws"
        raise ConfigError([ConfigProblem("stack", message, "name a stack with target aws")])
    return spec


def group_of(spec: ClusterSpec, word: str | None) -> str:
    if word is None and len(spec.groups) == 1:
        return next(iter(spec.groups))
    if word in spec.groups:
        return word
    what = "several groups" if word is None else f"{word!r} is no group"
    raise ConfigError([ConfigProblem("group", f"{what}; allowed: {', '.join(spec.groups)}", "give --group")])
