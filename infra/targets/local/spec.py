"""The section `local` of a spec."""

from __future__ import annotations

from typing import Annotated

from cluster import names
from cluster.spec import ClusterSpec
from cluster.spec.base import SpecModel, ValueDescription, field

SECTION = "local"


class Local(SpecModel):
    """Image of the nodes."""

    image: Annotated[str, ValueDescription("an image that `muster image build` has built")] = field(
        "image of all nodes, instead of the one that `make setup` builds",
        "forbidden",
        pattern=rf"^{names.BAKED_IMAGE}:[0-9.]+-[0-9a-f]{{12}}$",
        examples=[f"{names.BAKED_IMAGE}:24.11-0123456789ab"],
    )


def own_image(spec: ClusterSpec) -> str | None:
    """Return the image that a spec names."""
    section = spec.section(SECTION, Local)
    return section.image if section else None
