"""Pulumi's provider of resources that are written in Python, for a process that muster starts."""

from __future__ import annotations

import ast
import importlib.util
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

from google.protobuf import empty_pb2


def load_dynamic_provider() -> Any:
    """Return the provider, whose module would serve it when it is imported, with what an engine needs to attach."""
    spec = importlib.util.find_spec("pulumi.dynamic.__main__")
    if spec is None or spec.origin is None:
        raise ImportError("Pulumi has no file with its provider of dynamic resources")
    loader = _LoaderWithoutMain(spec.name, spec.origin)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return type("AttachableProvider", (_Attachable, module.DynamicResourceProviderServicer), {})()


class _Attachable:
    def Attach(self, _request: Any, _context: Any) -> Any:
        """Accept an engine that did not start this provider."""
        return empty_pb2.Empty()


class _LoaderWithoutMain(SourceFileLoader):
    """Load a module without its last statement, the call of main()."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path))
        if ast.unparse(tree.body.pop()) != "main()":
            raise ImportError(f"{path} does not end with main(): this version of Pulumi is not supported here")
        return compile(tree, path, "exec")
