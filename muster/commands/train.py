"""Run the trainer in this process, if torch is installed (`muster train`), and check the settings of training jobs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import PurePath

from infra.engine.command_line import format_command
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import DEFAULT_STACK

_TRAINER_WITH_ARGUMENTS = '-m trainer "$@"'
TRAINER_ON_NODE = "/shared/muster/trainer/run"


def train(arguments: list[str]) -> int:
    """Run the trainer with its own arguments and return its exit status."""
    from trainer.__main__ import TORCH_COMMANDS, main  # noqa: PLC0415  # most commands need nothing of the trainer

    if find_spec("torch") is None and _needs_torch(arguments):
        # These run on the login node.
        if arguments[0] in TORCH_COMMANDS:
            on_cluster = format_command("ssh", DEFAULT_STACK, then=f"{TRAINER_ON_NODE} {' '.join(arguments)}")
        else:
            settings = ("JOB=slurm/jobs/train.sbatch", f'ARGS="{" ".join(arguments)}"')
            on_cluster = format_command("submit", DEFAULT_STACK, *settings)
        fix = f"on the cluster: `{on_cluster}`; here: use an environment with `pip install '.[trainer]'`"
        raise Stop("train: torch is not installed in this environment", fix, BAD_INPUT)
    return main(arguments)


def check_training(job: str, arguments: list[str]) -> None:
    """Raise Stop if a training job has a preset or settings that the trainer would refuse.

    Settings files may exist only on the cluster, where the trainer checks them.
    """
    from trainer.config.errors import ConfigError  # noqa: PLC0415  # as above
    from trainer.config.load import load  # noqa: PLC0415  # as above

    if _TRAINER_WITH_ARGUMENTS not in job or not arguments or not _names_preset(arguments[0]):
        return
    try:
        load(arguments[0], arguments[1:])
    except ConfigError as error:
        raise Stop(f"{error.summary}\n{error}", code=BAD_INPUT) from None


def _needs_torch(arguments: list[str]) -> bool:
    """Return whether the trainer would import torch; it reports wrong settings of a run before that."""
    from trainer.__main__ import TORCH_COMMANDS, TORCHLESS_COMMANDS  # noqa: PLC0415  # as above
    from trainer.config.errors import ConfigError  # noqa: PLC0415  # as above
    from trainer.config.load import load  # noqa: PLC0415  # as above

    if not arguments or arguments[0] in TORCHLESS_COMMANDS:
        return False
    if arguments[0] in TORCH_COMMANDS:
        return True
    try:
        load(arguments[0], arguments[1:])
    except ConfigError:
        return False
    return True


def _names_preset(word: str) -> bool:
    from trainer.__main__ import TORCH_COMMANDS, TORCHLESS_COMMANDS  # noqa: PLC0415  # as above
    from trainer.config.load import list_presets  # noqa: PLC0415  # as above

    is_path = bool(PurePath(word).suffix) or "/" in word
    other = word.startswith("-") or "=" in word or word in (*TORCHLESS_COMMANDS, *TORCH_COMMANDS)
    return word in list_presets() or not (is_path or other)
