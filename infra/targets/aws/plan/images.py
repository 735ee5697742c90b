"""Which image a machine starts from: AWS's deep learning image where there are GPUs, plain Ubuntu elsewhere.

22.04 for both: its kernel stays where the Lustre client follows; that of the 24.04 image has moved on twice a year.
"""

from __future__ import annotations

from cluster.catalog.instances import InstanceType
from cluster.spec import ClusterSpec
from infra.targets.aws.plan import machines
from infra.targets.aws.spec import Aws, aws_section

GPU, PLAIN = "gpu", "plain"
FIELDS = {GPU: "ami", PLAIN: "plain_ami"}
"""Fields of the spec's aws section that name an image instead."""
_GPU_PATH = "/aws/service/deeplearning/ami/{architecture}/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
_PLAIN_PATH = "/aws/service/canonical/ubuntu/server/22.04/stable/current/{architecture}/hvm/ebs-gp2/ami-id"
_CANONICAL = {"x86_64": "amd64", "arm64": "arm64"}


def kind(machine: InstanceType) -> str:
    """Under this name the image is looked up once and kept."""
    return f"{_purpose(machine)}-{machine.architecture}"


def parameters(spec: ClusterSpec) -> dict[str, str]:
    """By kind of image, the SSM parameter that names it; without those for which the spec names an image."""
    wanted = [machines.controller(spec), *([machines.login(spec)] if spec.login.enabled else [])]
    wanted += [machines.compute(group) for group in spec.groups.values()]
    return {kind(one): _path(one) for one in wanted if given(spec, one) is None}


def given(spec: ClusterSpec, machine: InstanceType) -> str | None:
    section = aws_section(spec)
    named: str | None = getattr(section, field(machine)) if section else None
    return named


def field(machine: InstanceType) -> str:
    return FIELDS[_purpose(machine)]


def _purpose(machine: InstanceType) -> str:
    return GPU if machine.gpus.count else PLAIN


def _path(machine: InstanceType) -> str:
    if machine.gpus.count:
        return _GPU_PATH.format(architecture=machine.architecture)
    return _PLAIN_PATH.format(architecture=_CANONICAL[machine.architecture])


def image_fix(section: Aws) -> str:
    """Return how a person chooses another image for GPU nodes, as the beginning of a sentence."""
    if section.ami:
        return f"remove `aws.ami: {section.ami}` to use the AWS image"
    return "set `aws.ami` to an image that has the required versions"
