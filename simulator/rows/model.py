"""Derive the model of a row from its dimensions, its name, or its number of parameters."""

from __future__ import annotations

import re
from dataclasses import replace
from difflib import get_close_matches
from functools import cache

from simulator.model import Transformer
from simulator.models import find_model, list_model_names
from simulator.parameters import count_parameters
from simulator.rows.cells import RowCells, RowError

SHAPES = (
    (12, 768),
    (24, 1024),
    (16, 2048),
    (28, 3072),
    (32, 4096),
    (40, 5120),
    (48, 6656),
    (60, 7168),
    (80, 8192),
    (126, 16384),
)
"""Layers and widths of Llama 3 style models, for rows that give only the number of parameters."""

CLOSE_ERROR, CLEAR_RATIO = 0.02, 3.0
"""A variant is chosen by its parameter count if it is off by at most CLOSE_ERROR and CLEAR_RATIO times closer."""


def model_from_row(cells: RowCells) -> Transformer:
    """Return the transformer of a row; raise RowError if it cannot be determined."""
    seq = cells.whole("seq", None)
    if cells.text("layers") and cells.text("hidden") and (cells.text("ffn") or cells.text("heads")):
        published = _find_by_name(cells.text("model"))
        if published is None or not (published.experts or published.latent):
            return _by_dimensions(cells, seq)
        return _with_fewer_layers(cells, published, seq)
    published = _find_by_name(cells.text("model"))
    if published is not None:
        cells.infer("model", f"{published.layers}x{published.hidden}")
        return replace(published, seq=seq)
    if cells.text("params_b"):
        return _by_parameters(cells, seq)
    raise RowError(
        f"model: {cells.text('model')!r}; allowed: {', '.join(list_model_names())}; "
        "write one, or layers, hidden, heads, ffn and vocab"
    )


def _by_dimensions(cells: RowCells, seq: int) -> Transformer:
    hidden = cells.whole("hidden", None)
    heads = cells.whole("heads", max(1, hidden // 128))
    gated = bool(cells.whole("gated_mlp", 0, low=0, high=1))
    if hidden % heads:
        raise RowError(f"heads: {heads}; allowed: divisors of hidden = {hidden}; choose one")
    kv_heads = cells.whole("kv_heads", heads)
    if heads % kv_heads:
        raise RowError(f"kv_heads: {kv_heads}; allowed: divisors of heads = {heads}; choose one")
    model = Transformer(
        layers=cells.whole("layers", None),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=cells.whole("ffn", 4 * hidden),
        gated=gated,
        vocab=cells.whole("vocab", 50304 if not gated else 32000),
        seq=seq,
        tied=not gated,
    )
    return _decide_tying(cells, model)


def _decide_tying(cells: RowCells, default: Transformer) -> Transformer:
    """Tie or untie the output head if the number of parameters clearly says so."""
    if not cells.text("params_b"):
        return default
    target, other = cells.number("params_b", 0.0) * 1e9, replace(default, tied=not default.tied)
    error, other_error = (abs(count_parameters(model).total / target - 1) for model in (default, other))
    return other if other_error < CLOSE_ERROR and error > CLEAR_RATIO * other_error else default


def _with_fewer_layers(cells: RowCells, published: Transformer, seq: int) -> Transformer:
    """Return a published mixture of experts with the row's number of layers; at most one of them stays dense."""
    layers = cells.whole("layers", None)
    cells.infer("model", "experts and attention of its public configuration")
    experts = published.experts
    if experts is not None and layers < published.layers:
        experts = replace(experts, dense_layers=min(1, experts.dense_layers))
    return replace(published, layers=layers, seq=seq, experts=experts)


@cache
def _find_by_name(name: str) -> Transformer | None:
    """Return a published model: `llama3_70b (12-layer proxy)` and `Llama3 70B 2-node` are llama-70b."""
    bare = re.sub(r"\(.*?\)|\d+-node|-?(reduced|proxy|pretrain\w*)", "", name.lower()).strip()
    plain, sizeless = _plain(bare), _plain(re.sub(r"[ _-]\d+(\.\d+)?b$", "", bare))
    table = _table()
    for key in (plain, re.sub(r"llama3[1-3]?(?=\d+b)", "llama", plain), sizeless):
        if key in table:
            return find_model(table[key]).model
    near = get_close_matches(plain, [key for key in table if not key.startswith("tiny")], n=1, cutoff=0.93)
    return find_model(table[near[0]]).model if near and near[0][-3:] == plain[-3:] else None


@cache
def _table() -> dict[str, str]:
    return {_plain(name): name for name in list_model_names()}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name)


def _by_parameters(cells: RowCells, seq: int) -> Transformer:
    target = cells.number("params_b", 0.0) * 1e9
    best = min(
        (_styled(layers, hidden, seq) for layers, hidden in SHAPES),
        key=lambda model: abs(count_parameters(model).total - target),
    )
    cells.infer("model", f"{best.layers}x{best.hidden}")
    return best


def _styled(layers: int, hidden: int, seq: int) -> Transformer:
    heads = max(8, hidden // 128)
    ffn = hidden * 7 // 2
    return Transformer(
        layers=layers, hidden=hidden, heads=heads, kv_heads=8, ffn=ffn, gated=True, vocab=128256, seq=seq,
    )  # fmt: skip
