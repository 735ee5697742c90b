"""Parse a row of data/runs.csv into a model, a layout and a system; infer what it leaves out."""

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
from simulator.rows.cells import RowCells, RowError
from simulator.rows.model import model_from_row
from simulator.rows.network import DEFAULT_GB_S, parse_network
from simulator.rows.software import Software, parse_software
from simulator.rows.trainer import apply_trainer, failed, relax_if_it_fits

DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8")
RECOMPUTE = ("none", "selective", "full")
MAX_MISSING_LAYERS = 3
"""Layers that the end stages may lack: trainers count embedding, head and multi-token prediction as layers."""
PIPELINE_END_LAYERS = 2
"""Embedding and loss, which may take places in a pipeline like layers."""
MIN_MICRO_BATCHES_PER_STAGE = 4
"""Micro-batches per stage that a pipeline is assumed to have if the batch allows it."""
MAX_BUBBLE = 0.1
"""Share of a step that stages may wait before an interleaved schedule is assumed."""
SATURATING_TOKENS = 16384
"""Tokens of a micro-batch beyond which a larger one is not faster."""


@dataclass(frozen=True)
class ParsedRun:
    """The model, layout and system of a row."""

    model: Transformer
    layout: Layout
    system: System
    inferred: tuple[str, ...]
    """property=value of what the row leaves out."""


def parse_run_row(row: Mapping[str, str], *, identify_trainer: bool = True) -> ParsedRun:
    """Parse a row; raise RowError if it contradicts itself. `identify_trainer` False treats its trainer as unknown."""
    cells = RowCells(row)
    system = _system(cells)
    model = model_from_row(cells)
    dtype = cells.choice("dtype", DTYPES, "bf16")
    tp, pp, cp = (cells.whole(name, 1) for name in ("tp", "pp", "cp"))
    software = parse_software(
        cells.text("software") or cells.text("model"),
        cells.text("note"),
        narrow=dtype == "fp16",
        spread=tp * pp > 1,
        sharded=cells.text("zero_stage") == "3",
    )
    if dtype not in system.gpu.peak_tflops:
        allowed = ", ".join(system.gpu.peak_tflops)
        raise RowError(f"dtype: {dtype!r} on {system.gpu.name}; allowed: {allowed}; choose one")
    model = replace(model, flash=software.flash and system.gpu.generation != "volta")
    layout = _layout(cells, model, software, replace(Layout(tp=tp, pp=pp, cp=cp), dtype=dtype))  # type: ignore[arg-type]
    layout, widths = apply_trainer(cells, layout, identify=identify_trainer)
    layout = _fill(cells, model, layout, system, widths)
    layout = _interleaved(cells, model, layout, older=software.older)
    return ParsedRun(model, layout, system, tuple(cells.inferred))


def check_divisibility(model: Transformer, layout: Layout) -> None:
    """Raise RowError if the layout does not divide the model evenly enough."""
    tp, pp, ep, virtual, ranks = layout.tp, layout.pp, layout.ep, layout.virtual_stages, layout.dp * layout.cp
    if model.heads % tp:
        raise RowError(f"tp: {tp}; allowed: divisors of heads = {model.heads}; choose one")
    ends = PIPELINE_END_LAYERS if pp > PIPELINE_END_LAYERS else 0
    if pp * virtual > model.layers + ends:
        most = f"layers + {ends} = {model.layers + ends}" if ends else f"layers = {model.layers}"
        raise RowError(f"pp * virtual_stages: {pp * virtual}; allowed: up to {most}; make one smaller")
    if layout.pp > 1 and -model.layers % pp > MAX_MISSING_LAYERS:
        raise RowError(
            f"pp: {pp}; allowed: divisors of layers = {model.layers}, or of up to {MAX_MISSING_LAYERS} more; choose one"
        )
    if model.seq % layout.cp:
        raise RowError(f"cp: {layout.cp}; allowed: divisors of seq = {model.seq}; choose one")
    if ranks % ep:
        raise RowError(f"ep: {ep}; allowed: divisors of dp * cp = {ranks}; choose one")
    if layout.shard and ranks % layout.shard:
        raise RowError(f"shard_size: {layout.shard}; allowed: divisors of dp * cp = {ranks}; choose one")
    if ep > 1 and model.experts is not None and model.experts.count % ep:
        raise RowError(f"ep: {ep}; allowed: divisors of experts = {model.experts.count}; choose one")


def _system(cells: RowCells) -> System:
    name = parse_gpu_name(cells.required("gpu_type"))
    try:
        gpu = load_gpu(name, cells.number("gpu_memory_gb", 0.0, quiet=True))
    except KeyError as error:
        raise RowError(f"gpu_type: {name!r}; {str(error.args[0]).split('; ')[1]}; write one of them") from None
    gpus = cells.whole("gpus", None)
    interconnect = cells.text("interconnect")
    default_per_node = 4 if "4 gpu/node" in interconnect.lower() or name in ("gb200", "gb300") else 8
    per_node = cells.whole("gpus_per_node", min(gpus, default_per_node))
    nodes = cells.whole("nodes", ceil(gpus / per_node))
    if gpus > per_node * nodes:
        raise RowError(f"gpus: {gpus}; allowed: at most gpus_per_node * nodes = {per_node * nodes}; set nodes")
    domain = cells.whole("nvlink_domain", min(72, gpus) if name in ("gb200", "gb300") else per_node)
    network = parse_network(interconnect, per_node)
    node_gb_s = network.gb_s or DEFAULT_GB_S[gpu.generation] * per_node / 8
    inter = cells.number("inter_gb_s", node_gb_s if nodes > 1 else 0.0, quiet=nodes == 1)
    return System(
        name=cells.text("system") or name,
        gpu=gpu,
        gpus_per_node=per_node,
        nodes=nodes,
        intra_gb_s=cells.number("intra_gb_s", link_gb_s(gpu.name)),
        inter_gb_s=inter,
        nvlink_domain=domain,
        network=network.kind,
    )


def _layout(cells: RowCells, model: Transformer, software: Software, start: Layout) -> Layout:
    tp, pp, cp = start.tp, start.pp, start.cp
    gpus = cells.whole("gpus", None)
    if gpus % (tp * pp * cp):
        raise RowError(f"gpus: {gpus}; allowed: a multiple of tp * pp * cp = {tp * pp * cp}; change one of them")
    dp = cells.whole("dp", gpus // (tp * pp * cp))
    if dp * tp * pp * cp != gpus:
        raise RowError(f"dp * tp * pp * cp: {dp * tp * pp * cp}; allowed: gpus = {gpus}; change one of them")
    virtual = cells.whole("virtual_stages", 1, quiet=True)
    ep = cells.whole("ep", gcd(model.experts.count, dp * cp) if model.experts else 1)
    zero = cells.whole("zero_stage", _default_zero(cells, software, dp * cp), low=0, high=3)
    sequence_parallel = cells.whole("sequence_parallel", int(software.sequence_parallel), quiet=tp == 1, low=0, high=1)
    pure = software.pure or (zero in (1, 2) if software.framework == "torch" else software.older)
    layout = replace(
        start,
        dp=dp,
        ep=ep,
        virtual_stages=virtual,
        schedule="interleaved" if virtual > 1 else "1f1b",
        zero=zero,  # type: ignore[arg-type]
        shard=cells.whole("shard_size", dp * cp, quiet=True) if zero else 0,
        sequence_parallel=tp > 1 and bool(sequence_parallel),
        gradient_bytes=2 if pure else 4,
        compiled=software.compiled,
        framework=software.framework,
        adapters=software.adapters,
        early_flash=software.early_flash,
        relays=software.relays,
        overlaps=software.overlaps,
        deduplicates=software.deduplicates,
    )
    check_divisibility(model, layout)
    return layout


def _default_zero(cells: RowCells, software: Software, ranks: int) -> int:
    if ranks == 1:
        return 0
    if software.framework == "torch":
        return 0 if "ddp" in cells.text("software").lower() else 3
    return 1


def _fill(cells: RowCells, model: Transformer, layout: Layout, system: System, widths: tuple[int, ...]) -> Layout:
    """Infer batch and recomputation as the first combination that fits in memory, as the reported run did."""
    recompute: Any = cells.choice("recompute", RECOMPUTE, "", blank=True)
    per_forward = cells.hint("micro_batch", r"\bMBS (\d+)", r"micro[_ ]batch[ =](\d+)")
    accumulation = cells.hint("accumulation", r"\bGA (\d+)", r"\bgrad_accum=(\d+)", quiet=True)
    batch = cells.whole("global_batch", 0, quiet=True)
    if batch and not per_forward and accumulation and batch % (layout.dp * accumulation) == 0:
        per_forward = batch // (layout.dp * accumulation)
        cells.infer("micro_batch", per_forward)
    if batch and per_forward and batch % (per_forward * layout.dp):
        whole = per_forward * layout.dp
        raise RowError(f"global_batch: {batch}; allowed: multiples of micro_batch * dp = {whole}; change one of them")
    if batch and batch % layout.dp:
        raise RowError(f"global_batch: {batch}; allowed: multiples of dp = {layout.dp}; change one of them")
    sizes = [per_forward] if per_forward else _micro_batches(model, layout, batch)
    candidates = _candidates(layout, sizes, [recompute] if recompute else list(RECOMPUTE), batch, widths)
    usual_width = [layout for layout in candidates if layout.weight_bytes == candidates[0].weight_bytes]
    fitting = () if failed(cells) else (layout for layout in candidates if predict_memory(model, layout, system).fits)
    # If nothing fits, take the layout with the least memory and the usual weights.
    chosen = next(iter(fitting), usual_width[-1])
    if not per_forward:
        cells.infer("micro_batch", chosen.micro_batch)
    if not recompute:
        cells.infer("recompute", chosen.recompute)
    if not batch:
        cells.infer("global_batch", chosen.global_batch)
    if chosen.weight_bytes != layout.weight_bytes:
        cells.infer("weight_bytes", chosen.weight_bytes)
    return relax_if_it_fits(model, chosen, system)


def _interleaved(cells: RowCells, model: Transformer, layout: Layout, *, older: bool) -> Layout:
    """Infer an interleaved schedule for tuned runs that do not give one: as many virtual stages as limit the bubble."""
    if layout.pp == 1 or cells.text("virtual_stages"):
        return layout
    if older or not (layout.overlaps or layout.gpus >= PIPELINE_TUNED_MIN_GPUS):
        cells.infer("virtual_stages", layout.virtual_stages)
        return layout
    each = max(1, model.layers // layout.pp)
    options = [count for count in range(1, each + 1) if each % count == 0]
    bubble = (layout.pp - 1) / max(1, layout.micro_batches)
    chosen = next((count for count in options if bubble / count <= MAX_BUBBLE), options[-1])
    cells.infer("virtual_stages", chosen)
    return replace(layout, virtual_stages=chosen, schedule="interleaved" if chosen > 1 else "1f1b")


def _micro_batches(model: Transformer, layout: Layout, batch: int) -> list[int]:
    """Return the micro-batch sizes to try, largest first; pipelines get many small ones."""
    largest = max(1, SATURATING_TOKENS * layout.cp // model.seq)
    if layout.pp > 1 and batch:
        largest = max(1, min(largest, batch // (layout.dp * MIN_MICRO_BATCHES_PER_STAGE * layout.pp)))
    return [
        size for size in (64, 32, 16, 8, 4, 2, 1) if size <= largest and not (batch and batch % (size * layout.dp))
    ] or [1]


def _candidates(
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
