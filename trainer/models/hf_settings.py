"""The settings of a run that starts from the weights of a Hugging Face folder."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.config.check import check
from trainer.config.errors import ConfigError
from trainer.config.load import from_dict
from trainer.config.yaml_text import dump_yaml
from trainer.models import hf_config

SEQ_LEN = 4096
"""Sequence length of the run unless the model allows only less: the longest that it allows rarely fits a GPU."""


def render_yaml(folder: Path) -> str:
    """Return the settings as YAML; raise ConfigError if the model or a part of it is not supported."""
    try:
        config_json = hf_config.read_config_json(folder)
        theirs = hf_config.read_settings(config_json, str(folder))
    except ConfigError as error:
        raise ConfigError([replace(problem, where="--from") for problem in error.problems]) from error
    longest = config_json.get("max_position_embeddings") or SEQ_LEN
    model = {name: setting.value for name, setting in theirs.items()}
    tree: dict[str, Any] = {
        "name": re.sub(r"[^A-Za-z0-9._-]", "-", folder.resolve().name).lstrip("._-") or "hugging-face",
        "model": {"seq_len": min(SEQ_LEN, longest), **model},
        "precision": "bf16",
        "checkpoint": {"initial": str(folder.resolve())},
    }
    problems = check(from_dict(tree))
    if problems:
        raise ConfigError(problems)
    text = dump_yaml(tree)
    if longest > SEQ_LEN:
        shorter = f"  seq_len: {SEQ_LEN}\n"
        text = text.replace(shorter, f"{shorter.rstrip()}  # of at most {longest}, which rarely fit a GPU\n", 1)
    return f"# The model in {folder.resolve()}; add data, steps, batch, optimizer and schedule.\n{text}"
