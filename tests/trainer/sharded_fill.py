"""Run on four ranks: compare the initial weights of sharded models with those of a whole model."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from trainer.config.models import LlamaConfig
from trainer.models.init import fill
from trainer.models.registry import build_model

# Four ranks do not divide these widths.
CONFIG = LlamaConfig(vocab_size=61, dim=36, layers=2, heads=6, kv_heads=2, ffn=50, seq_len=16)


def compare() -> dict[str, bool]:
    """Return for each mesh whether the joined weights are equal."""
    return {
        "shard": _is_equal(init_device_mesh("cpu", (4,), mesh_dim_names=("shard",))),
        "replicate x shard": _is_equal(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))),
        "shard x tensor": _is_equal(init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))),
    }


def _is_equal(mesh: torch.distributed.device_mesh.DeviceMesh) -> bool:
    whole = build_model(CONFIG)
    fill([whole], seed=1)
    with torch.device("meta"):
        model = build_model(CONFIG)
    data = mesh
    if "tensor" in mesh.mesh_dim_names:
        for block in model.layers.values():
            plan = {"ffn.gate": ColwiseParallel(), "ffn.up": ColwiseParallel(), "ffn.down": RowwiseParallel()}
            parallelize_module(block, mesh["tensor"], plan)
        data = mesh["shard"]
    for block in model.layers.values():
        fully_shard(block, mesh=data)
    fully_shard(model, mesh=data)
    model.to_empty(device="cpu")
    model.init_buffers("cpu")
    fill([model], seed=1)
    return all(torch.equal(value.full_tensor(), whole.get_parameter(name)) for name, value in model.named_parameters())
