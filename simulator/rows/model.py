"""The model of a row: by its sizes, else by its name, else by its number of parameters."""

from __future__ import annotations

import re
from dataclasses import replace
from difflib import get_close_matches
from functools import cache

from simulator.model import Transformer
from simulator.models import find_model, list_model_names
from simulator.parameters import count_parameters
from simulator.rows.values import RowCells, RowError

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
"""Layers and widths of models in the style of Llama 3, for rows that say no more than how many parameters there are."""

SURE, CLEARLY = 0.02, 3.0
"""Parameters that are this near to what a row says, and so many times nearer than otherwise, settle a doubt."""


def model_from_row(values: RowCells) -> Transformer:
    seq = values.whole("seq", None)
    if values.text("layers") and values.text("hidden") and (values.text("ffn") or values.text("heads")):
        known = _known(values.text("model"))
        if known is None or not (known.experts or known.latent):
            return _by_sizes(values, seq)
        return _reduced(values, known, seq)
    known = _known(values.text("model"))
    if known is not None:
        values.infer("model", f"{known.layers}x{known.hidden}")
        return replace(known, seq=seq)
    if values.text("params_b"):
        return _by_parameters(values, seq)
    raise RowError(
        f"model: {values.text('model')!r}; allowed: {', '.join(list_model_names())}; "
        "write one, or layers, hidden, heads, ffn and vocab"
    )


def _by_sizes(values: RowCells, seq: int) -> Transformer:
    hidden = values.whole("hidden", None)
    heads = values.whole("heads", max(1, hidden // 128))
    gated = bool(values.whole("gated_mlp", 0, low=0, high=1))
    if hidden % heads:
        raise RowError(f"heads: {heads}; allowed: divisors of hidden = {hidden}; choose one")
    kv_heads = values.whole("kv_heads", heads)
    if heads % kv_heads:
        raise RowError(f"kv_heads: {kv_heads}; allowed: divisors of heads = {heads}; choose one")
    found = Transformer(
        layers=values.whole("layers", None),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=values.whole("ffn", 4 * hidden),
        gated=gated,
        vocab=values.whole("vocab", 50304 if not gated else 32000),
        seq=seq,
        tied=not gated,
    )
    return _tied(values, found)


def _tied(values: RowCells, usual: Transformer) -> Transformer:
    """Whether the head is the embedding, by the number of parameters where that decides it."""
    if not values.text("params_b"):
        return usual
    told, other = values.number("params_b", 0.0) * 1e9, replace(usual, tied=not usual.tied)
    off, otherwise = (abs(count_parameters(one).total / told - 1) for one in (usual, other))
    return other if otherwise < SURE and off > CLEARLY * otherwise else usual


def _reduced(values: RowCells, known: Transformer, seq: int) -> Transformer:
    """Fewer layers of a known mixture of experts: the first of them stays plain."""
    layers = values.whole("layers", None)
    values.infer("model", "experts and attention of its public configuration")
    experts = known.experts
    if experts is not None and layers < known.layers:
        experts = replace(experts, dense_layers=min(1, experts.dense_layers))
    return replace(known, layers=layers, seq=seq, experts=experts)


@cache
def _known(name: str) -> Transformer | None:
    """`llama3_70b (12-layer proxy)` and `Llama3 70B 2-node` are llama-70b."""
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
    return {_plain(one): one for one in list_model_names()}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name)


def _by_parameters(values: RowCells, seq: int) -> Transformer:
    wanted = values.number("params_b", 0.0) * 1e9
    best = min(
        (_styled(layers, hidden, seq) for layers, hidden in SHAPES),
        key=lambda one: abs(count_parameters(one).total - wanted),
    )
    values.infer("model", f"{best.layers}x{best.hidden}")
    return best


def _styled(layers: int, hidden: int, seq: int) -> Transformer:
    heads = max(8, hidden // 128)
    ffn = hidden * 7 // 2
    return Transformer(
        layers=layers, hidden=hidden, heads=heads, kv_heads=8, ffn=ffn, gated=True, vocab=128256, seq=seq,
    )  # fmt: skip
