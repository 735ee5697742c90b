"""Which image a machine starts from: AWS's deep learning image where there are GPUs, plain Ubuntu elsewhere.

Both are 22.04, whose kernel the Lustre client supports; the kernel of the 24.04 image changes twice a year.
"""

from __future__ import annotations

from collections.abc import Container

from cluster.catalog.instances import InstanceType
from cluster.spec import ClusterSpec, NodeGroup
from infra.targets.aws.plan import machines
from infra.targets.aws.spec import Aws, aws_section

GPU, PLAIN = "gpu", "plain"
FIELDS = {GPU: "ami", PLAIN: "plain_ami"}
"""Fields of the spec's aws section that set an image instead, by purpose."""
_GPU_PATH = "/aws/service/deeplearning/ami/{architecture}/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
_PLAIN_PATH = "/aws/service/canonical/ubuntu/server/22.04/stable/current/{architecture}/hvm/ebs-gp2/ami-id"
_CANONICAL = {"x86_64": "amd64", "arm64": "arm64"}


def kind(machine: InstanceType) -> str:
    """Return the kind of image that a machine needs, which is the key of its id in the state."""
    return f"{_purpose(machine)}-{machine.architecture}"


def parameters(spec: ClusterSpec) -> dict[str, str]:
    """Return the SSM parameters that hold image ids, by kind of image, without images that the spec names itself."""
    types = [machines.controller(spec), *([machines.login(spec)] if spec.login.enabled else [])]
    types += [machines.compute(group) for group in spec.groups.values() if group.image is None]
    return {kind(machine): parameter(machine) for machine in types if given(spec, machine) is None}


def given(spec: ClusterSpec, machine: InstanceType) -> str | None:
    """Return the image that the spec's section names for a machine."""
    section = aws_section(spec)
    image: str | None = getattr(section, field(machine)) if section else None
    return image


def given_to_group(spec: ClusterSpec, group: NodeGroup) -> str | None:
    """Return the image that the spec names for the nodes of a group: its own, or that of the section."""
    return group.image or given(spec, machines.compute(group))


def with_group_images(spec: ClusterSpec) -> ClusterSpec:
    """Return the spec with the image of each group written out, so that only groups with another image change."""
    groups = {
        name: group.model_copy(update={"image": given_to_group(spec, group)}) for name, group in spec.groups.items()
    }
    return spec.model_copy(update={"groups": groups})


def without_group_images(spec: ClusterSpec, built: Container[str]) -> ClusterSpec:
    """Return the spec without the images of single groups that this cluster's own builds made.

    A refresh replaces them: they are those of one that was interrupted, or of a trial of a new image on one group.
    """
    groups = {
        name: group.model_copy(update={"image": None}) if group.image in built else group
        for name, group in spec.groups.items()
    }
    return spec.model_copy(update={"groups": groups})


def field(machine: InstanceType) -> str:
    """Return the field of the spec's aws section that sets the image of a machine."""
    return FIELDS[_purpose(machine)]


def image_fix(section: Aws) -> str:
    """Return how to choose another image for GPU nodes, as the beginning of a sentence."""
    if section.ami:
        return f"remove `aws.ami: {section.ami}` to use the AWS image"
    return "set `aws.ami` to an image that has the required versions"


def parameter(machine: InstanceType) -> str:
    """Return the SSM parameter that holds the id of AWS's newest image for a machine."""
    if machine.gpus.count:
        return _GPU_PATH.format(architecture=machine.architecture)
    return _PLAIN_PATH.format(architecture=_CANONICAL[machine.architecture])


def _purpose(machine: InstanceType) -> str:
    return GPU if machine.gpus.count else PLAIN
