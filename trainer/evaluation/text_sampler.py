"""Let a language model continue prompts, to see in words what its loss means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.mixture import MixtureEntry, parse_mixture
from trainer.config.models import DecoderConfig
from trainer.config.schema import Config, DataConfig
from trainer.data.remote import is_remote
from trainer.data.shard_folder import Reading
from trainer.data.tokenizer import Tokenizer, load_stored_tokenizer
from trainer.models.cross_entropy import predict_tokens
from trainer.models.functional import IGNORED_TARGET, get_logits
from trainer.models.head import Head
from trainer.parallel.context import take_part
from trainer.parallel.engine import Engine
from trainer.parallel.evaluation_mode import evaluation_mode

_PADDING = 0


class TextSampler:
    """The continuations of a run's prompts: the most likely token at each place, so that steps can be compared.

    All ranks write the same texts, because a sharded or split model needs all of them for a forward pass. Inputs look
    like those of an evaluation, so compiled blocks are not compiled again. With compile.mode=whole the first token
    compiles the model once more, because its head predicts tokens instead of computing a loss.
    """

    def __init__(self, engine: Engine, config: Config, micro: int) -> None:
        """Read the tokenizer of the training data; raise ConfigError if there is none, or if a prompt does not fit."""
        self._engine = engine
        self._micro = micro
        self._prompts = config.evaluation.prompts
        self._count = config.evaluation.prompt_tokens
        self._has_documents = config.data.documents != "joined"
        self._tokenizer = _load_tokenizer(config.data)
        length = config.data.seq_len or _require_decoder(config).seq_len
        self._tokens = [self._tokenizer.encode(prompt.encode()).tolist() for prompt in self._prompts]
        self._inputs = self._place_prompts(length)

    def run(self, is_stopped: Callable[[], bool] = lambda: False) -> dict[str, str] | None:
        """Return the continuation of each prompt, or None if `is_stopped` answered true after a token."""
        inputs = self._inputs.clone()
        ends = torch.tensor([len(tokens) for tokens in self._tokens])
        rows = torch.arange(len(ends))
        with evaluation_mode(self._engine):
            for _ in range(self._count):
                inputs[rows, ends] = self._predict(inputs, ends)
                ends += 1
                if is_stopped():
                    return None
        written = [
            row[len(tokens) :][: self._count].tolist() for row, tokens in zip(inputs, self._tokens, strict=False)
        ]
        return {prompt: self._decode(tokens) for prompt, tokens in zip(self._prompts, written, strict=True)}

    def _predict(self, inputs: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Return the most likely next token of each prompt; `ends` are the numbers of its tokens so far."""
        device, mesh = self._engine.mesh.device, self._engine.mesh
        # Only the place whose prediction is asked for has a target, so that it is found wherever a rank computes it.
        targets = torch.full_like(inputs, IGNORED_TARGET)
        targets[torch.arange(len(ends)), ends - 1] = 0
        parts = []
        for start in range(0, len(inputs), self._micro):
            part = slice(start, start + self._micro)
            batch = {"inputs": inputs[part].to(device), "targets": targets[part].to(device)}
            if self._has_documents:
                # A prompt is one document; the model takes the same arguments as in training.
                batch["documents"] = torch.zeros_like(batch["inputs"], dtype=torch.int32)
            tokens = self._engine.measure(take_part(batch, mesh), NextTokens(), self._micro)
            parts.append(torch.zeros(self._micro, dtype=torch.int64, device=device) if tokens is None else tokens)
        return mesh.sum_over(torch.cat(parts), "pipeline", "context")[: len(ends)].cpu()

    def _place_prompts(self, length: int) -> torch.Tensor:
        """Return the prompts as rows of whole micro-batches; what follows a prompt has no effect on it."""
        for prompt, tokens in zip(self._prompts, self._tokens, strict=True):
            if not tokens:
                message = f"the tokenizer of the data turns {prompt[:40]!r} into no token"
                raise ConfigError([ConfigProblem("evaluation.prompts", message, "use another prompt")])
            if len(tokens) + self._count > length:
                message = f"{prompt[:40]!r} has {len(tokens)} tokens, and {self._count} are to follow, "
                message += f"but a sequence has only {length}"
                fix = "use a shorter prompt or a smaller evaluation.prompt_tokens"
                raise ConfigError([ConfigProblem("evaluation.prompts", message, fix)])
        rows = -(-len(self._tokens) // self._micro) * self._micro
        inputs = np.full((rows, length), _PADDING)
        for row, tokens in zip(inputs, self._tokens, strict=False):
            row[: len(tokens)] = tokens
        return torch.from_numpy(inputs)

    def _decode(self, tokens: list[int]) -> str:
        """Return tokens as text, up to the end of the document."""
        eos = self._tokenizer.eos
        return self._tokenizer.decode(tokens[: tokens.index(eos)] if eos in tokens else tokens)


@dataclass(frozen=True)
class NextTokens:
    """The most likely token of each row at the place that has a target; 0 if no place has one."""

    def __call__(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        return (get_logits(outputs).argmax(-1) * (targets != IGNORED_TARGET)).sum(-1)

    def from_hidden(self, hidden: torch.Tensor, head: Head, targets: torch.Tensor) -> torch.Tensor:
        """Return the same without the logits of other places; called inside the model's head."""
        return predict_tokens(hidden, head, targets)


def _load_tokenizer(data: DataConfig) -> Tokenizer:
    """Return the tokenizer of the training data; all sources of a mixture have the same."""
    path = next((entry.path for entry in parse_mixture(data.mixture) if isinstance(entry, MixtureEntry)), data.path)
    name = Reading(cache=data.cache).open_folder(path).read_index().tokenizer
    tokenizer = load_stored_tokenizer(name, Path(path))
    if tokenizer is None:
        message = f"need the tokenizer {name}, but {path} has no tokenizer.json"
        fix = f"run prepare again, which adds it without tokenizing again, or copy the file to {path}"
        if is_remote(path):
            message = f"need the tokenizer {name}, which is not read from {path}"
            fix = "leave them out, or use a local folder of shards"
        raise ConfigError([ConfigProblem("evaluation.prompts", message, fix)])
    return tokenizer


def _require_decoder(config: Config) -> DecoderConfig:
    if not isinstance(config.model, DecoderConfig):
        raise TypeError(f"{config.model.family} has no tokens")
    return config.model
