"""Let the linear layers of a model's units compute in fp8, and its head if asked to."""

from __future__ import annotations

import torch
from torch import nn

from trainer.config.check_fp8 import FP8_MULTIPLE
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.models.experts import MixtureOfExperts
from trainer.models.fp8 import use_fp8
from trainer.models.head import Head
from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh
from trainer.parallel.units import Units

_MIN_CAPABILITY = (8, 9)


def use_fp8_products(model: nn.Module, units: Units, recipe: Recipe, mesh: Mesh) -> None:
    """Change the linear layers of all units, and the head, if the recipe says so."""
    if recipe.fp8.scaling == "none":
        return
    _check_device(recipe, mesh.device)
    layers = _list_layers(units)
    if not layers:
        message = f"{recipe.fp8.scaling}, but no layer of {type(model).__name__} has linear layers "
        message += f"whose sizes are multiples of {FP8_MULTIPLE}"
        raise ConfigError([ConfigProblem("fp8.scaling", message, "set it to none")])
    for layer in layers:
        use_fp8(layer, has_row_scales=recipe.fp8.scaling == "row")
    if recipe.fp8.head:
        _use_fp8_head(model)


def _use_fp8_head(model: nn.Module) -> None:
    """Let the head compute in fp8, or raise ConfigError if it cannot; only the last stage of a pipeline has one."""
    head = getattr(model, "head", None)
    if head is None and hasattr(model, "head"):
        return
    if not isinstance(head, Head):
        message = f"true, but the head of {type(model).__name__} does not compute the objective of a language model"
        raise ConfigError([ConfigProblem("fp8.head", message, "set it to false")])
    for size, name in ((head.out_features, "vocabulary"), (head.in_features, "width")):
        if size % FP8_MULTIPLE:
            message = f"true, but the model's {name} is {size}, and fp8 products need multiples of {FP8_MULTIPLE}"
            fix = f"set it to false, or pad the {name} to {size + -size % FP8_MULTIPLE}"
            raise ConfigError([ConfigProblem("fp8.head", message, fix)])
    head.uses_fp8 = True


def _check_device(recipe: Recipe, device: torch.device) -> None:
    """Raise ConfigError if the GPU has no fp8 products; a CPU computes the same in fp32."""
    if device.type != "cuda":
        return
    capability = torch.cuda.get_device_capability(device)
    if capability < _MIN_CAPABILITY:
        message = f"{recipe.fp8.scaling}, but fp8 products need compute capability 8.9 (Ada, Hopper) or later, "
        message += f"and this GPU has {capability[0]}.{capability[1]}"
        raise ConfigError([ConfigProblem("fp8.scaling", message, "set it to none")])


def _list_layers(units: Units) -> list[nn.Linear]:
    """Return the linear layers that can compute in fp8. Embeddings, head and experts are not among them."""
    return [layer for unit in units.layers for layer in _list_linear_layers(unit.module)]


def _list_linear_layers(module: nn.Module) -> list[nn.Linear]:
    if isinstance(module, MixtureOfExperts):
        return []
    if type(module) is nn.Linear:
        return [] if module.in_features % FP8_MULTIPLE or module.out_features % FP8_MULTIPLE else [module]
    return [layer for child in module.children() for layer in _list_linear_layers(child)]
