"""Modules with Triton kernels, run by Triton's interpreter on the CPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch


@contextmanager
def interpret(name: str) -> Iterator[Any]:
    """Import a module anew, because Triton decides how to run a kernel when it is defined; forget it afterwards."""
    sys.modules.pop(name, None)
    with patch.dict(os.environ, TRITON_INTERPRET="1"):
        yield import_module(name)
    del sys.modules[name]
    package, _, module = name.rpartition(".")
    delattr(sys.modules[package], module)
