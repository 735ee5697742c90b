"""Compare requests with the types that Azure publishes: its own Python packages have them as TypedDicts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any, Required, Union, get_args, get_origin

import azure.mgmt.compute.models
import azure.mgmt.compute.types
import azure.mgmt.network.models
import azure.mgmt.network.types
import azure.mgmt.storagecache.models
import azure.mgmt.storagecache.types
from pydantic import ConfigDict, TypeAdapter

_COMPUTE = (azure.mgmt.compute.types, azure.mgmt.compute.models)
_NETWORK = (azure.mgmt.network.types, azure.mgmt.network.models)
_STORAGE = (azure.mgmt.storagecache.types, azure.mgmt.storagecache.models)
# The type of the body of each request, by method, type of the resource, and action.
TYPES: Mapping[tuple[str, str], tuple[tuple[ModuleType, ModuleType], str]] = {
    ("PUT", "microsoft.compute/virtualmachinescalesets"): (_COMPUTE, "VirtualMachineScaleSet"),
    ("PATCH", "microsoft.compute/virtualmachinescalesets"): (_COMPUTE, "VirtualMachineScaleSetUpdate"),
    ("POST", "microsoft.compute/virtualmachinescalesets/delete"): (
        _COMPUTE,
        "VirtualMachineScaleSetVMInstanceRequiredIDs",
    ),
    ("POST", "microsoft.compute/virtualmachinescalesets/start"): (_COMPUTE, "VirtualMachineScaleSetVMInstanceIDs"),
    ("POST", "microsoft.compute/virtualmachinescalesets/runCommand"): (_COMPUTE, "RunCommandInput"),
    ("PUT", "microsoft.compute/virtualmachines"): (_COMPUTE, "VirtualMachine"),
    ("PATCH", "microsoft.compute/virtualmachines"): (_COMPUTE, "VirtualMachineUpdate"),
    ("POST", "microsoft.compute/virtualmachines/runCommand"): (_COMPUTE, "RunCommandInput"),
    ("PUT", "microsoft.network/networksecuritygroups"): (_NETWORK, "NetworkSecurityGroup"),
    ("PUT", "microsoft.network/publicipaddresses"): (_NETWORK, "PublicIPAddress"),
    ("PATCH", "microsoft.network/publicipaddresses"): (_NETWORK, "TagsObject"),
    ("PUT", "microsoft.network/natgateways"): (_NETWORK, "NatGateway"),
    ("PUT", "microsoft.network/virtualnetworks"): (_NETWORK, "VirtualNetwork"),
    ("PUT", "microsoft.network/networkinterfaces"): (_NETWORK, "NetworkInterface"),
    ("PATCH", "microsoft.network/networkinterfaces"): (_NETWORK, "TagsObject"),
    ("PUT", "microsoft.storagecache/amlfilesystems"): (_STORAGE, "AmlFilesystem"),
    ("PATCH", "microsoft.storagecache/amlfilesystems"): (_STORAGE, "AmlFilesystemUpdate"),
}
# Resource groups belong to no package that muster needs.
GROUP_KEYS = {"location", "tags"}
TEXT_OR_ENUMERATION = 2
# Lists that are far from complete, as Azure says.
OPEN = {"VirtualMachineSizeTypes"}


def check_body(method: str, what: str, body: Mapping[str, Any]) -> None:
    """Raise pydantic's ValidationError if a body has a field, or a value, that the published type does not have."""
    if what == "microsoft.resources/resourcegroups":
        assert set(body) <= GROUP_KEYS
        return
    modules, name = TYPES[method, what]
    # JSON, because only there text is a value of an enumeration for pydantic's strict mode.
    _build_adapter(modules, name).validate_json(json.dumps(body))


@cache
def _build_adapter(modules: tuple[ModuleType, ModuleType], name: str) -> TypeAdapter[Any]:
    types, models = modules
    namespace = {**vars(models), **vars(types)}
    for published in vars(types).values():
        if isinstance(published, type) and hasattr(published, "__required_keys__"):
            published.__pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[attr-defined]
            # Types that derive from others lack `total=False`: only what says Required is.
            published.__required_keys__ = frozenset(  # type: ignore[attr-defined]
                key for key, kind in published.__annotations__.items() if get_origin(kind) is Required
            )
            published.__annotations__ = {
                key: _require_published(kind) for key, kind in published.__annotations__.items()
            }
    adapter: TypeAdapter[Any] = TypeAdapter(namespace[name], config=None)
    adapter.rebuild(_types_namespace=namespace)
    return adapter


def _require_published(kind: Any) -> Any:
    """Return the enumeration for a type that is any text or an enumeration; any other type as it is."""
    if get_origin(kind) is Required:
        return Required[_require_published(get_args(kind)[0])]
    arguments = get_args(kind)
    if get_origin(kind) is not Union or str not in arguments or len(arguments) != TEXT_OR_ENUMERATION:
        return kind
    enumeration = next(argument for argument in arguments if argument is not str)
    return str if getattr(enumeration, "__forward_arg__", "") in OPEN else enumeration
