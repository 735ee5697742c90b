"""What a model weighs, read off the model: one pass over tensors without memory that counts what backward keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from trainer.auto.memory import WEIGHT, Sizes
from trainer.config.schema import Config
from trainer.models.build import build
from trainer.world import World

_MEMINFO = Path("/proc/meminfo")


def sizes(config: Config, batch: dict[str, torch.Tensor], device_type: str) -> Sizes:
    """`batch` is a few samples of the run's data; only its shapes and types are used."""
    with _weightless(config, device_type):
        model = build(config.model)
        inputs = torch.empty_strided(batch["inputs"].shape, batch["inputs"].stride(), dtype=batch["inputs"].dtype)
        blocks = list(_blocks(model))
        counts = _Counts(model, blocks)
        with torch.autograd.graph.saved_tensors_hooks(counts.keep, counts.give), _autocast(config, device_type):
            outputs = model(inputs)
    samples = len(inputs)
    parameters = sum(p.numel() for p in model.parameters())
    largest = max((sum(p.numel() for p in block.parameters()) for block in blocks), default=parameters)
    return Sizes(
        parameters=parameters,
        largest_block=largest,
        states=2 if config.optimizer.name == "adamw" else int(config.optimizer.momentum > 0),
        blocks=len(blocks),
        activations=counts.kept // samples,
        block_input=counts.inputs // (samples * max(len(blocks), 1)),
        block_products=counts.products // (samples * max(len(blocks), 1)),
        outputs=outputs.numel() * WEIGHT // samples,
    )


def least_free(world: World) -> int:
    """Free bytes of the fullest rank: the same number on every rank."""
    free = torch.tensor(free_bytes(world), dtype=torch.int64)
    if world.group is not None:
        dist.all_reduce(free, dist.ReduceOp.MIN, group=world.group)
    return int(free)


def free_bytes(world: World) -> int:
    if world.device.type == "cuda":
        return int(torch.cuda.mem_get_info(world.device)[0])
    return min([_available(), *_cgroup_limits()]) // world.local_size


class _Counts:
    """Bytes that backward keeps (each storage once, weights not) and bytes that blocks take in and multiply out."""

    def __init__(self, model: nn.Module, blocks: Iterable[nn.Module]) -> None:
        self.kept = self.inputs = self.products = 0
        self._seen = {p.untyped_storage()._cdata for p in model.parameters()}
        self._alive: list[torch.Tensor] = []
        for block in blocks:
            block.register_forward_pre_hook(self._input)
            for part in block.modules():
                if isinstance(part, nn.Linear | nn.Conv2d):
                    part.register_forward_hook(self._product)

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._seen:
            self._seen.add(storage._cdata)
            # A storage that is freed could give its address to the next one.
            self._alive.append(tensor)
            self.kept += storage.nbytes()
        return tensor

    def give(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def _input(self, _: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        self.inputs += args[0].nbytes

    def _product(self, _: nn.Module, args: object, output: torch.Tensor) -> None:
        del args
        self.products += output.nbytes


def _blocks(model: nn.Module) -> Iterable[nn.Module]:
    """The parts that parallelism wraps one by one; a model without `layers` is one block."""
    layers = getattr(model, "layers", None)
    return layers.values() if isinstance(layers, nn.ModuleDict) else [model]


@contextmanager
def _weightless(config: Config, device_type: str) -> Iterator[None]:
    """Tensors without memory. Those that autocast knows how to cast take a second to import."""
    if config.precision == "fp32":
        with torch.device("meta"):
            yield
        return
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415

    with FakeTensorMode(), torch.device(device_type):
        yield


def _autocast(config: Config, device_type: str) -> torch.autocast:
    dtype = torch.float16 if config.precision == "fp16" else torch.bfloat16
    return torch.autocast(device_type, dtype=dtype, enabled=config.precision != "fp32")


def _available() -> int:
    fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def _cgroup_limits() -> Iterable[int]:
    """What is left of this process's own memory limits: Slurm gives a job less than the node has."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _left(Path("/sys/fs/cgroup") / path.lstrip("/"), "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root = Path("/sys/fs/cgroup/memory")
            yield from _left(root / path.lstrip("/"), "memory.limit_in_bytes", "memory.usage_in_bytes")


def _left(folder: Path, limit: str, used: str) -> Iterable[int]:
    for place in [folder, *folder.parents]:
        if not (place / limit).exists():
            continue
        text = (place / limit).read_text().strip()
        if text.isdigit():
            yield max(int(text) - int((place / used).read_text()), 0)
