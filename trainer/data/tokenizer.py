"""Text to tokens: bytes as they are, or a Hugging Face tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.config.errors import ConfigError, ConfigProblem

# Names of the token between documents, where a tokenizer has no tokenizer_config.json that says it.
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]")


@dataclass(frozen=True)
class Tokenizer:
    """`fingerprint` changes with everything that changes tokens."""

    name: str
    fingerprint: str
    vocab_size: int
    eos: int | None
    encode: Callable[[bytes], NDArray[Any]]

    @property
    def dtype(self) -> str:
        return "uint16" if self.vocab_size <= 2**16 else "uint32"


def tokenizer_for(where: str) -> Tokenizer:
    """`bytes`, a tokenizer.json, or a folder with one."""
    if where == "bytes":
        return Tokenizer("bytes", "bytes-1", 257, 256, lambda text: np.frombuffer(text, np.uint8))
    path = Path(where)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise _error(f"there is no file {file}", "give `bytes`, a tokenizer.json, or a folder that holds one")
    try:
        from tokenizers import Tokenizer as Fast  # noqa: PLC0415  # a package that a byte tokenizer does without
    except ImportError as error:
        raise _error(f"{where} needs the package tokenizers", "install tokenizers, or use bytes") from error
    try:
        fast = Fast.from_file(str(file))
    except Exception as error:  # the package raises bare Exception
        raise _error(
            f"{file} is not a tokenizer ({error})", "give the tokenizer.json of a Hugging Face model"
        ) from error
    fast.no_truncation()
    return Tokenizer(
        name=path.resolve().parent.name if path.is_file() else path.resolve().name,
        fingerprint=hashlib.sha256(file.read_bytes()).hexdigest(),
        vocab_size=max(fast.get_vocab(with_added_tokens=True).values()) + 1,
        eos=_end(fast, file.parent),
        encode=lambda text: np.asarray(fast.encode(_text(text), add_special_tokens=False).ids, np.uint32),
    )


def _end(fast: Any, folder: Path) -> int | None:
    names: list[str] = []
    settings = folder / "tokenizer_config.json"
    if settings.is_file():
        end = json.loads(settings.read_text(encoding="utf-8")).get("eos_token")
        names = [end["content"] if isinstance(end, dict) else end] if end else []
    found = (fast.token_to_id(name) for name in (*names, *_ENDS))
    return next((number for number in found if number is not None), None)


def _text(raw: bytes) -> str:
    """Bytes that are not UTF-8 become the replacement character: one bad byte must not lose a night's work."""
    return raw.decode("utf-8", errors="replace")


def _error(message: str, fix: str) -> ConfigError:
    return ConfigError([ConfigProblem("--tokenizer", message, fix)])
