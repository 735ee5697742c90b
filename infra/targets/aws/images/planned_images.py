"""The images of a spec, as data: what each contains, what it is built from, and on which type of machine."""

from __future__ import annotations

from dataclasses import dataclass

from bootstrap.image_contents import ImageContents
from cluster.inventory import Role
from cluster.spec import ClusterSpec
from infra.targets.aws.node.cloud import LUSTRE_CLIENT
from infra.targets.aws.plan import images, machines

# An existing filesystem may be of either kind; the Lustre client is then installed at boot, because it needs a kernel
# of its own.
_CLIENTS = {"fsx-lustre": "lustre", "efs": "efs", "existing": "efs"}


@dataclass(frozen=True)
class PlannedImage:
    """An image that nodes of a spec can start from."""

    purpose: str
    """`gpu` or `plain`."""
    architecture: str
    contents: ImageContents
    parameter: str
    """Parameter of AWS that names the newest base image."""
    own_image: str | None
    """The image that the spec names instead; it may be a baked one."""
    builder_type: str
    """Instance type of the machine that builds it. Nothing that is installed needs a GPU."""

    @property
    def field(self) -> str:
        """Field of the spec's aws section that names the image."""
        return images.FIELDS[self.purpose]


def plan_images(spec: ClusterSpec) -> list[PlannedImage]:
    """Return the images of a spec, one for each field that names the image of any machine.

    Groups that have an image of their own need none.
    """
    controller = machines.controller(spec)
    uses: dict[str, list[Role]] = {images.kind(controller): ["controller"]}
    types = {images.kind(controller): controller}
    if spec.login.enabled:
        login = machines.login(spec)
        types.setdefault(images.kind(login), login)
        uses.setdefault(images.kind(login), []).append("login")
    for group in spec.groups.values():
        if group.image:
            continue
        machine = machines.compute(group)
        types.setdefault(images.kind(machine), machine)
        uses.setdefault(images.kind(machine), []).append("compute")
    return [
        PlannedImage(
            purpose=kind.partition("-")[0],
            architecture=types[kind].architecture,
            contents=describe_contents(spec, tuple(dict.fromkeys(roles))),
            parameter=images.parameter(types[kind]),
            own_image=images.given(spec, types[kind]),
            builder_type=controller.name,
        )
        for kind, roles in uses.items()
    ]


def describe_contents(spec: ClusterSpec, roles: tuple[Role, ...]) -> ImageContents:
    """Return what an image for these roles has to contain."""
    kinds = sorted({_CLIENTS[storage.kind] for storage in spec.storage.values() if storage.kind in _CLIENTS})
    fields = {"roles": roles, "slurm": spec.software.slurm, "filesystems": kinds, "lustre_client": LUSTRE_CLIENT}
    return ImageContents.model_validate(fields)
