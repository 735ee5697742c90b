"""Find the units of a model: the layers that are gathered, recomputed and compiled one at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_MAX_NAMED = 4


@dataclass(frozen=True)
class Unit:
    """A layer of a model, with the name that the model gives it."""

    name: str
    module: nn.Module
    kind: str
    """The name of its class."""
    parameters: int
    shares_weights: bool
    """Whether a part outside of this layer uses one of its weights, so that the layer cannot be sharded alone."""


@dataclass(frozen=True)
class Units:
    """The units of a model or of a pipeline stage in the model's order, and the modules with all other weights."""

    model: str
    """The name of the model's class."""
    parameters: int
    layers: tuple[Unit, ...]
    others: tuple[str, ...]
    other_parameters: int

    @property
    def separable(self) -> list[Unit]:
        """The units that can be sharded on their own; the others stay with the root."""
        return [unit for unit in self.layers if not unit.shares_weights]

    def summarize(self) -> list[dict[str, Any]]:
        """Return, for each class of units, its name, the first and the last unit, and counts of units and weights."""
        by_class: dict[str, list[Unit]] = {}
        for unit in self.layers:
            by_class.setdefault(unit.kind, []).append(unit)
        return [
            {
                "class": name,
                "count": len(units),
                "first": units[0].name,
                "last": units[-1].name,
                "parameters": sum(unit.parameters for unit in units),
            }
            for name, units in by_class.items()
        ]

    def describe(self) -> str:
        """Return one line that names the units, their share of the weights, and where the other weights are."""
        if not self.layers:
            return f"none: {self.model} is handled as a whole"
        groups = [
            f"{group['count']} x {group['class']} ({group['first']}"
            + (f" to {group['last']})" if group["count"] > 1 else ")")
            for group in self.summarize()
        ]
        inside = 1 - self.other_parameters / max(self.parameters, 1)
        largest = max(unit.parameters for unit in self.layers) / max(self.parameters, 1)
        line = f"{', '.join(groups)} hold {inside:.0%} of the weights, the largest {largest:.1%}"
        if self.others:
            line += f"; other weights: {list_names(self.others)}"
        shared = [unit.name for unit in self.layers if unit.shares_weights]
        if shared:
            line += f"; not sharded on their own because they share weights: {list_names(shared)}"
        return line


def find_units(model: nn.Module) -> Units:
    """Find the layers of any tree of modules.

    Layers are the members of the outermost lists (ModuleList, ModuleDict, Sequential). A member that holds a list
    itself is a layer if its class is repeated, as in a stack of decoder layers; otherwise it is searched, too. Single
    operations, such as an embedding in a ModuleDict, are layers only in a model that has no larger ones, because its
    weight may be used by another part. A model without lists is divided into its children.
    """
    repeats = Counter(type(part) for _, part in model.named_modules(remove_duplicate=False))
    members = dict(_search(model, "", repeats))
    layers = {name: part for name, part in members.items() if _has_weights_below(part)} or members
    layers = layers or dict(_list_children(model, ""))
    uses = _count_uses(model, list(layers.values()))
    units = tuple(
        Unit(
            name,
            part,
            type(part).__name__,
            sum(parameter.numel() for parameter in part.parameters()),
            any(uses[id(parameter)] > 1 for parameter in part.parameters()),
        )
        for name, part in layers.items()
    )
    inside = {id(part) for unit in units for part in unit.module.modules()}
    weights = {id(weight) for unit in units for weight in unit.module.parameters()}
    return Units(
        model=type(model).__name__,
        parameters=sum(weight.numel() for weight in model.parameters()),
        layers=units,
        others=tuple(name or "itself" for name, part in _list_owners(model) if id(part) not in inside),
        other_parameters=sum(weight.numel() for weight in model.parameters() if id(weight) not in weights),
    )


def list_names(names: list[str] | tuple[str, ...]) -> str:
    """Return the first few names, and how many more there are."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def _search(module: nn.Module, prefix: str, repeats: Counter[type]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers in the outermost lists below a module, with their names."""
    for name, child in module.named_children():
        if not _has_weights(child):
            continue
        if isinstance(module, _LISTS) and _is_layer(child, is_repeated=repeats[type(child)] > 1):
            yield prefix + name, child
        else:
            yield from _search(child, f"{prefix}{name}.", repeats)


def _is_layer(member: nn.Module, *, is_repeated: bool) -> bool:
    """Return whether a member of a list is a layer; `is_repeated` says whether the model has more of its class."""
    if not _has_forward(member):
        return False
    if not any(isinstance(part, _LISTS) and _has_weights(part) for part in member.modules()):
        return True
    if type(member) is nn.Sequential and any(_has_weights_below(part) for part in member.children()):
        # A stage of a larger network, such as the four of a ResNet: its members are the layers.
        return False
    return is_repeated


def _list_children(model: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the children that hold weights, below wrappers that do nothing but hold another module."""
    children = [(name, child) for name, child in model.named_children() if _has_weights(child)]
    if len(children) == 1 and not any(True for _ in model.parameters(recurse=False)):
        name, child = children[0]
        yield from _list_children(child, f"{prefix}{name}.")
        return
    yield from ((prefix + name, child) for name, child in children if _has_forward(child))


def _count_uses(model: nn.Module, layers: list[nn.Module]) -> Counter[int]:
    """Count, for each weight, the layers that hold it; all parts outside of layers count as one."""
    uses = Counter(id(parameter) for layer in layers for parameter in layer.parameters())
    inside = {id(part) for layer in layers for part in layer.modules()}
    outside = (part for part in model.modules() if id(part) not in inside)
    uses.update({id(parameter) for part in outside for parameter in part.parameters(recurse=False)})
    return uses


def _list_owners(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that hold weights themselves."""
    for name, part in model.named_modules():
        if any(True for _ in part.parameters(recurse=False)):
            yield name, part


def _has_weights(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _has_weights_below(module: nn.Module) -> bool:
    return any(_has_weights(child) for child in module.children())


def _has_forward(module: nn.Module) -> bool:
    """Return whether a module can be called; containers such as ModuleList and ParameterList cannot."""
    return type(module).forward is not nn.Module.forward
