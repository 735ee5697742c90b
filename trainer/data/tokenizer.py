"""Tokenizers: raw bytes, or the tokenizer.json of a Hugging Face model."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.config.errors import ConfigError, ConfigProblem

# Common names of the end-of-text token, for tokenizers without a tokenizer_config.json that names it.
_EOS_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]")
_END_OF_BYTES = 256
_TOKENIZER_FILE = "tokenizer.json"
_SETTINGS_FILE = "tokenizer_config.json"


@dataclass(frozen=True)
class Tokenizer:
    """A function from text to tokens, with its vocabulary."""

    name: str
    fingerprint: str
    """Changes whenever the tokens of any text would change."""
    vocab_size: int
    eos: int | None
    """Token at the end of each document, if there is one."""
    encode: Callable[[bytes], NDArray[Any]]
    decode: Callable[[list[int]], str]
    files: tuple[Path, ...] = ()
    """The files that it was loaded from."""

    @property
    def dtype(self) -> str:
        return "uint16" if self.vocab_size <= 2**16 else "uint32"


def load_tokenizer(where: str) -> Tokenizer:
    """Load the tokenizer `bytes`, a tokenizer.json, or the one in a folder."""
    if where == "bytes":
        return Tokenizer(
            "bytes",
            "bytes-1",
            _END_OF_BYTES + 1,
            _END_OF_BYTES,
            lambda text: np.frombuffer(text, np.uint8),
            _decode_bytes,
        )
    path = Path(where)
    file = path / _TOKENIZER_FILE if path.is_dir() else path
    if not file.is_file():
        raise _error(f"there is no file {file}", "give `bytes`, a tokenizer.json, or a folder that contains one")
    try:
        from tokenizers import Tokenizer as Fast  # noqa: PLC0415 - not needed for bytes
    except ImportError as error:
        fix = "install tokenizers (on a cluster: muster-env add tokenizers, see docs/bootstrap.md), or use bytes"
        raise _error(f"{where} needs the package tokenizers", fix) from error
    try:
        fast = Fast.from_file(str(file))
    except Exception as error:  # the package raises nothing more specific
        raise _error(
            f"{file} is not a tokenizer ({error})", "give the tokenizer.json of a Hugging Face model"
        ) from error
    fast.no_truncation()
    return Tokenizer(
        name=path.resolve().parent.name if path.is_file() else path.resolve().name,
        fingerprint=hashlib.sha256(file.read_bytes()).hexdigest(),
        vocab_size=max(fast.get_vocab(with_added_tokens=True).values()) + 1,
        eos=_find_eos(fast, file.parent),
        encode=lambda text: np.asarray(fast.encode(_decode(text), add_special_tokens=False).ids, np.uint32),
        decode=lambda tokens: str(fast.decode(tokens)),
        files=tuple(path for path in (file, file.with_name(_SETTINGS_FILE)) if path.is_file()),
    )


def store_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Copy the files of a tokenizer next to the shards that it made, so that their tokens can be read as text."""
    for source, name in zip(tokenizer.files, (_TOKENIZER_FILE, _SETTINGS_FILE), strict=False):
        target = folder / name
        if source.resolve() != target.resolve():
            partial = target.with_name(name + ".partial")
            shutil.copyfile(source, partial)
            partial.replace(target)


def load_stored_tokenizer(name: str, folder: Path) -> Tokenizer | None:
    """Return the tokenizer that `store_tokenizer` has stored; None if shards of an older version lack it."""
    if (folder / _TOKENIZER_FILE).is_file():
        return load_tokenizer(str(folder))
    return load_tokenizer(name) if name == "bytes" else None


def _decode_bytes(tokens: list[int]) -> str:
    return _decode(bytes(token for token in tokens if token < _END_OF_BYTES))


def _find_eos(fast: Any, folder: Path) -> int | None:
    names: list[str] = []
    settings = folder / _SETTINGS_FILE
    if settings.is_file():
        eos = json.loads(settings.read_text(encoding="utf-8")).get("eos_token")
        names = [eos["content"] if isinstance(eos, dict) else eos] if eos else []
    ids = (fast.token_to_id(name) for name in (*names, *_EOS_NAMES))
    return next((token for token in ids if token is not None), None)


def _decode(raw: bytes) -> str:
    # A byte that is not UTF-8 must not end hours of work, so it becomes the replacement character.
    return raw.decode("utf-8", errors="replace")


def _error(message: str, fix: str) -> ConfigError:
    return ConfigError([ConfigProblem("--tokenizer", message, fix)])
