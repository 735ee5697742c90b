"""The tokenizer that belongs to the weights of a run: find its files, and copy them to an exported folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from trainer.config.mixture import MixtureEntry, parse_mixture
from trainer.config.schema import Config

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)
"""Files that transformers reads with the tokenizer of a folder."""


def copy_tokenizer(config: Config, out: Path) -> Path | None:
    """Copy the files of the tokenizer, except those that are there already, and return the folder they come from."""
    mixture = [entry.path for entry in parse_mixture(config.data.mixture) if isinstance(entry, MixtureEntry)]
    for path in (config.checkpoint.initial, config.data.path, *mixture):
        folder = Path(path)
        files = [folder / name for name in _TOKENIZER_FILES if path and (folder / name).is_file()]
        if any(file.name.startswith("tokenizer") or file.name == "vocab.json" for file in files):
            for file in files:
                if not (out / file.name).exists():
                    shutil.copyfile(file, out / file.name)
            return folder
    return None
