"""Check that a model calls its units: a layer whose weights are used without calling it cannot be a unit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.parallel.units import Units, list_names

_FIX = "call each layer as layer(x), or use parallel.strategy=ddp, parallel.recompute=none and compile.mode=none"


@contextmanager
def check_calls(units: Units) -> Iterator[None]:
    """Raise ConfigError if the model does not call its units inside of this context.

    torch's own error only says that a sharded tensor met a plain one. If some units are not called and nothing fails,
    the model may skip layers at random, which is allowed.
    """
    called: set[str] = set()
    hooks = [
        unit.module.register_forward_pre_hook(lambda *_, name=unit.name: called.add(name)) for unit in units.layers
    ]
    try:
        yield
    except RuntimeError as error:
        if "DTensor" not in str(error):
            raise
        unused = [unit.name for unit in units.layers if unit.name not in called]
        message = f"{units.model} uses weights of {list_names(unused or [unit.name for unit in units.layers])}"
        raise ConfigError([ConfigProblem("model", f"{message} without calling the layer", _FIX)]) from error
    finally:
        for hook in hooks:
            hook.remove()
    if units.layers and not called:
        message = f"{units.model} does not call its layers {list_names([unit.name for unit in units.layers])}"
        raise ConfigError([ConfigProblem("model", message, _FIX)])
