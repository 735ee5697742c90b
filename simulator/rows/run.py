"""A row of published runs (columns of data/runs.csv) as model, layout and system; what it leaves out is inferred."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, gcd
from typing import Any

from simulator.hardware.gpus import link_gb_s, load_gpu, parse_gpu_name
from simulator.hardware.system import System
from simulator.layout import PIPELINE_TUNED_MIN_GPUS, Layout
from simulator.memory.peak import predict_memory
from simulator.model import Transformer
from simulator.rows.model import model_from_row
from simulator.rows.network import USUAL_GB_S, parse_network
from simulator.rows.software import Software, parse_software
from simulator.rows.trainer import failed, roomy, with_habits
from simulator.rows.values import RowCells, RowError

DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8")
RECOMPUTE = ("none", "selective", "full")
UNEVEN = 3
"""Layers that end stages may have less: trainers count embedding, head and a part for further tokens as layers."""
ENDS = 2
"""Embedding and loss, which may have places in a pipeline as if they were layers."""
FED = 4
"""Micro-batches per stage that a pipeline is given at least, where there are so many."""
IDLE = 0.1
"""Share of a step up to which stages may wait before layers are dealt out in turns."""
FULL_TOKENS = 16384
"""Tokens of a forward beyond which a larger micro-batch is no faster."""


@dataclass(frozen=True)
class ParsedRun:
    model: Transformer
    layout: Layout
    system: System
    inferred: tuple[str, ...]
    """property=value of what the row does not say."""


def parse_run_row(row: Mapping[str, str], *, known: bool = True) -> ParsedRun:
    """RowError where the row cannot be true. `known` False: as if no trainer's habits were known."""
    values = RowCells(row)
    system = _system(values)
    model = model_from_row(values)
    dtype = values.choice("dtype", DTYPES, "bf16")
    tp, pp, cp = (values.whole(name, 1) for name in ("tp", "pp", "cp"))
    words = parse_software(
        values.text("software") or values.text("model"),
        values.text("note"),
        narrow=dtype == "fp16",
        spread=tp * pp > 1,
        sharded=values.text("zero_stage") == "3",
    )
    if dtype not in system.gpu.peak_tflops:
        allowed = ", ".join(system.gpu.peak_tflops)
        raise RowError(f"dtype: {dtype!r} on {system.gpu.name}; allowed: {allowed}; choose one")
    model = replace(model, flash=words.flash and system.gpu.generation != "volta")
    layout = _layout(values, model, words, replace(Layout(tp=tp, pp=pp, cp=cp), dtype=dtype))  # type: ignore[arg-type]
    layout, widths = with_habits(values, layout, known=known)
    layout = _fill(values, model, layout, system, widths)
    layout = _interleaved(values, model, layout, older=words.older)
    return ParsedRun(model, layout, system, tuple(values.inferred))


def check_divisibility(model: Transformer, layout: Layout) -> None:
    """RowError where the layout cannot be laid over the model."""
    tp, pp, ep, virtual, ranks = layout.tp, layout.pp, layout.ep, layout.virtual_stages, layout.dp * layout.cp
    if model.heads % tp:
        raise RowError(f"tp: {tp}; allowed: divisors of heads = {model.heads}; choose one")
    ends = ENDS if pp > ENDS else 0
    if pp * virtual > model.layers + ends:
        most = f"layers + {ends} = {model.layers + ends}" if ends else f"layers = {model.layers}"
        raise RowError(f"pp * virtual_stages: {pp * virtual}; allowed: up to {most}; make one smaller")
    if layout.pp > 1 and -model.layers % pp > UNEVEN:
        raise RowError(f"pp: {pp}; allowed: divisors of layers = {model.layers}, or of up to {UNEVEN} more; choose one")
    if model.seq % layout.cp:
        raise RowError(f"cp: {layout.cp}; allowed: divisors of seq = {model.seq}; choose one")
    if ranks % ep:
        raise RowError(f"ep: {ep}; allowed: divisors of dp * cp = {ranks}; choose one")
    if layout.shard and ranks % layout.shard:
        raise RowError(f"shard_size: {layout.shard}; allowed: divisors of dp * cp = {ranks}; choose one")
    if ep > 1 and model.experts is not None and model.experts.count % ep:
        raise RowError(f"ep: {ep}; allowed: divisors of experts = {model.experts.count}; choose one")


def _system(values: RowCells) -> System:
    name = parse_gpu_name(values.required("gpu_type"))
    try:
        found = load_gpu(name, values.number("gpu_memory_gb", 0.0, quiet=True))
    except KeyError as error:
        raise RowError(f"gpu_type: {name!r}; {str(error.args[0]).split('; ')[1]}; write one of them") from None
    gpus = values.whole("gpus", None)
    words = values.text("interconnect")
    usual = 4 if "4 gpu/node" in words.lower() or name in ("gb200", "gb300") else 8
    per_node = values.whole("gpus_per_node", min(gpus, usual))
    nodes = values.whole("nodes", ceil(gpus / per_node))
    if gpus > per_node * nodes:
        raise RowError(f"gpus: {gpus}; allowed: at most gpus_per_node * nodes = {per_node * nodes}; set nodes")
    domain = values.whole("nvlink_domain", min(72, gpus) if name in ("gb200", "gb300") else per_node)
    net = parse_network(words, per_node)
    said = net.gb_s or USUAL_GB_S[found.generation] * per_node / 8
    inter = values.number("inter_gb_s", said if nodes > 1 else 0.0, quiet=nodes == 1)
    return System(
        name=values.text("system") or name,
        gpu=found,
        gpus_per_node=per_node,
        nodes=nodes,
        intra_gb_s=values.number("intra_gb_s", link_gb_s(found.name)),
        inter_gb_s=inter,
        nvlink_domain=domain,
        network=net.kind,
    )


def _layout(values: RowCells, model: Transformer, words: Software, begun: Layout) -> Layout:
    tp, pp, cp = begun.tp, begun.pp, begun.cp
    gpus = values.whole("gpus", None)
    if gpus % (tp * pp * cp):
        raise RowError(f"gpus: {gpus}; allowed: a multiple of tp * pp * cp = {tp * pp * cp}; change one of them")
    dp = values.whole("dp", gpus // (tp * pp * cp))
    if dp * tp * pp * cp != gpus:
        raise RowError(f"dp * tp * pp * cp: {dp * tp * pp * cp}; allowed: gpus = {gpus}; change one of them")
    virtual = values.whole("virtual_stages", 1, quiet=True)
    ep = values.whole("ep", gcd(model.experts.count, dp * cp) if model.experts else 1)
    zero = values.whole("zero_stage", _usual_zero(values, words, dp * cp), low=0, high=3)
    sequence_parallel = values.whole("sequence_parallel", int(words.sequence_parallel), quiet=tp == 1, low=0, high=1)
    pure = words.pure or (zero in (1, 2) if words.framework == "torch" else words.older)
    found = replace(
        begun,
        dp=dp,
        ep=ep,
        virtual_stages=virtual,
        schedule="interleaved" if virtual > 1 else "1f1b",
        zero=zero,  # type: ignore[arg-type]
        shard=values.whole("shard_size", dp * cp, quiet=True) if zero else 0,
        sequence_parallel=tp > 1 and bool(sequence_parallel),
        gradient_bytes=2 if pure else 4,
        compiled=words.compiled,
        framework=words.framework,
        adapters=words.adapters,
        early_flash=words.early_flash,
        relays=words.relays,
        overlaps=words.overlaps,
        deduplicates=words.deduplicates,
    )
    check_divisibility(model, found)
    return found


def _usual_zero(values: RowCells, words: Software, ranks: int) -> int:
    if ranks == 1:
        return 0
    if words.framework == "torch":
        return 0 if "ddp" in values.text("software").lower() else 3
    return 1


def _fill(values: RowCells, model: Transformer, layout: Layout, system: System, widths: tuple[int, ...]) -> Layout:
    """Batch and recomputation, which decide whether it fits: a run that is reported did."""
    recompute: Any = values.choice("recompute", RECOMPUTE, "", blank=True)
    per_forward = values.hint("micro_batch", r"\bMBS (\d+)", r"micro[_ ]batch[ =](\d+)")
    accumulation = values.hint("accumulation", r"\bGA (\d+)", r"\bgrad_accum=(\d+)", quiet=True)
    batch = values.whole("global_batch", 0, quiet=True)
    if batch and not per_forward and accumulation and batch % (layout.dp * accumulation) == 0:
        per_forward = batch // (layout.dp * accumulation)
        values.infer("micro_batch", per_forward)
    if batch and per_forward and batch % (per_forward * layout.dp):
        whole = per_forward * layout.dp
        raise RowError(f"global_batch: {batch}; allowed: multiples of micro_batch * dp = {whole}; change one of them")
    if batch and batch % layout.dp:
        raise RowError(f"global_batch: {batch}; allowed: multiples of dp = {layout.dp}; change one of them")
    sizes = [per_forward] if per_forward else _micro_batches(model, layout, batch)
    tries = _tries(layout, sizes, [recompute] if recompute else list(RECOMPUTE), batch, widths)
    wide = [one for one in tries if one.weight_bytes == tries[0].weight_bytes]
    # Where nothing fits, what needs the least with usual weights.
    fitting = () if failed(values) else (one for one in tries if predict_memory(model, one, system).fits)
    found = next(iter(fitting), wide[-1])
    if not per_forward:
        values.infer("micro_batch", found.micro_batch)
    if not recompute:
        values.infer("recompute", found.recompute)
    if not batch:
        values.infer("global_batch", found.global_batch)
    if found.weight_bytes != layout.weight_bytes:
        values.infer("weight_bytes", found.weight_bytes)
    return roomy(model, found, system)


def _interleaved(values: RowCells, model: Transformer, layout: Layout, *, older: bool) -> Layout:
    """As many turns as keep the stages busy, where somebody has seen to it and does not say."""
    if layout.pp == 1 or values.text("virtual_stages"):
        return layout
    if older or not (layout.overlaps or layout.gpus >= PIPELINE_TUNED_MIN_GPUS):
        values.infer("virtual_stages", layout.virtual_stages)
        return layout
    each = max(1, model.layers // layout.pp)
    turns = [turns for turns in range(1, each + 1) if each % turns == 0]
    waits = (layout.pp - 1) / max(1, layout.micro_batches)
    chosen = next((one for one in turns if waits / one <= IDLE), turns[-1])
    values.infer("virtual_stages", chosen)
    return replace(layout, virtual_stages=chosen, schedule="interleaved" if chosen > 1 else "1f1b")


def _micro_batches(model: Transformer, layout: Layout, batch: int) -> list[int]:
    """Pipelines are fed with many small ones."""
    largest = max(1, FULL_TOKENS * layout.cp // model.seq)
    if layout.pp > 1 and batch:
        largest = max(1, min(largest, batch // (layout.dp * FED * layout.pp)))
    return [
        size for size in (64, 32, 16, 8, 4, 2, 1) if size <= largest and not (batch and batch % (size * layout.dp))
    ] or [1]


def _tries(
    layout: Layout, sizes: list[int], recomputes: list[Any], batch: int, widths: tuple[int, ...]
) -> list[Layout]:
    return [
        replace(
            layout,
            micro_batch=size,
            global_batch=batch or size * layout.dp * (4 * layout.pp if layout.pp > 1 else 1),
            recompute=recompute,
            weight_bytes=weight_bytes,
        )
        for weight_bytes in widths
        for recompute in recomputes
        for size in sizes
    ]
