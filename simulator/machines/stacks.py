"""Find stack files by name, read them, and choose one of their node groups."""

from __future__ import annotations

from pathlib import Path

from cluster.spec import ClusterSpec, SpecError
from infra.targets.registry import read_spec, target_of, targets
from simulator.machines.stack_names import file_of, names, similar
from trainer.config.errors import ConfigError, ConfigProblem


def find(word: str) -> Path:
    """Return the file of a stack, given its path or its name in stacks/."""
    if word.endswith((".yaml", ".yml")) and Path(word).is_file():
        return Path(word)
    if file := file_of(word):
        return file
    fix = f"did you mean {' or '.join(similar(word))}?" if similar(word) else "name one of them, or a stack file"
    raise ConfigError([ConfigProblem("stack", f"{word!r} is not a stack; allowed: {', '.join(names())}", fix)])


def any_spec_of(file: Path) -> ClusterSpec:
    """Return the description in a stack file of any target; raise ConfigError if it is invalid."""
    try:
        return read_spec(file)
    except SpecError as error:
        raise ConfigError(
            [ConfigProblem(f"stack: {issue.where}", issue.message, issue.fix) for issue in error.issues]
        ) from None


def spec_of(file: Path) -> ClusterSpec:
    """Return the description in a stack file whose machines are in the catalog; raise ConfigError for others."""
    spec = any_spec_of(file)
    if not target_of(spec).capabilities.rents_machines or not target_of(spec).region(spec):
        supported = " and ".join(name for name, target in targets().items() if target.capabilities.rents_machines)
        message = f"the simulator knows no machines of target {spec.target}, only those of {supported}"
        message += f"; allowed: {', '.join(priced_examples())}"
        example = priced_examples()[-1]
        fix = f"name one of them, such as `--stack {example}`, or with make `STACK={example}`"
        raise ConfigError([ConfigProblem("stack", message, fix)])
    return spec


def priced_examples() -> list[str]:
    """Return the example stacks of the targets whose machines the simulator knows."""
    return [name for target in targets().values() if target.capabilities.rents_machines for name in target.examples]


def group_of(spec: ClusterSpec, word: str | None) -> str:
    """Return the node group of this name, or the only group; raise ConfigError if the choice is not clear."""
    if word is None and len(spec.groups) == 1:
        return next(iter(spec.groups))
    if word in spec.groups:
        return word
    what = "several groups" if word is None else f"{word!r} is not a group"
    raise ConfigError([ConfigProblem("group", f"{what}; allowed: {', '.join(spec.groups)}", "give --group")])
