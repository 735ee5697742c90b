"""What the models of the spec are built from: their base class, and fields that say what a change of them does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Policy = Literal["safe", "drain", "replace", "upgrade", "forbidden"]


def field(description: str, policy: Policy, **limits: Any) -> Any:
    """Declare a field of the spec; `policy` is what changing it does to a running cluster.

    A field whose values must not be printed is marked with `Annotated[..., SECRET]`.
    """
    return Field(description=description, json_schema_extra={"policy": policy}, **limits)


class SpecModel(BaseModel):
    """Base of the spec's models: immutable, unknown keys and wrong types are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


SpecModelT = TypeVar("SpecModelT", bound=SpecModel)


@dataclass(frozen=True)
class ValueDescription:
    """Describes the values of a field in error messages; used in `Annotated`."""

    text: str


@dataclass(frozen=True)
class Secret:
    """Marks a field whose values error messages must not show; used in `Annotated`."""


SECRET = Secret()
