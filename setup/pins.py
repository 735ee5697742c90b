"""The versions and names of everything that setup installs, and how versions are compared."""

import re

PULUMI = "3.259.0"
# The first version that `requiredPulumiVersion` in Pulumi.yaml rejects.
PULUMI_BELOW = "4.0.0"
# The newest language host that the Go module proxy serves; it is compatible with the SDK of PULUMI.
LANGUAGE_HOST = "3.79.0"
# The `go` line of setup/pulumi/cli/go.mod.
GO = "1.25.11"
# By machine, the checksum of Go's toolchain module in that version, as `go mod download -json` prints it. Others must
# have a Go that is new enough.
GO_SUMS = {"x86_64": "h1:AUChz5pzC7L9cEGXaGD6Z0N5m2H2JDiTZywfitOXskU="}
# By machine, the SHA-256 of Pulumi's release. If it cannot be downloaded, Pulumi is built from Go modules, whose
# checksums are in setup/pulumi.
PULUMI_SHA256 = {
    "x86_64": "94ba357acac23d01474084c4b00098dc0f7bc70ce13f34c777459254a5f718e5",
    "aarch64": "edc8327463a72160bb36cf82cf5062da9c8a244290a706d9980988e7bf486853",
}
PULUMI_FILES = ("pulumi", "pulumi-language-python", "pulumi-language-python-exec", "pulumi-resource-pulumi-python")

# For tests that run a real Kubernetes cluster: its version, the `go` line of the modules in setup/kubernetes, and the
# version of JobSet.
KUBERNETES = "1.36.0"
KUBERNETES_GO = "1.26.0"
JOBSET = "0.12.0"

SUITE = "trixie"
# debian:trixie of 2026-09-18, Debian 13.7: the digest is that of the list of images for all kinds of machines. Not
# compared with the registry: taken from public projects that pin it. docs/release.md says how to compare.
OFFICIAL_BASE = "debian@sha256:9cc080028c43b27d2074d63a5f9caf7166d731494965616c1a6d2827a004585c"
BASE_IMAGE = "muster-base:trixie"
# The image with the Slurm of SUITE; the image of the default release is a layer on it.
NODE_IMAGE = "muster-node:24.11"
SLURM_RELEASES = ("24.11", "26.05")
# The default release, whose image is built unless another one is asked for.
SLURM = "26.05"
SLURM_IMAGE = "muster-node:26.05"
ENV_VOLUME = "muster-cache-env"
# For nightly tests: the image of trainer/Dockerfile, and its base.
TRAINER_IMAGE = "muster-trainer:1"
TRAINER_BASE_IMAGE = "muster-trainer-base:1"


def parse_version(text: str) -> tuple[int, ...]:
    """Return the first dotted number in a text such as `v3.259.0` or `go version go1.26.8 linux/amd64`, else ()."""
    match = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def is_at_least(printed: str, minimum: str) -> bool:
    """Return whether a version, as a tool prints it, is `minimum` or newer; False if the text holds no version."""
    version = parse_version(printed)
    return bool(version) and version >= parse_version(minimum)
