"""What setup installs: the versions and names the other rooms count on."""

PULUMI = "3.259.0"
# The first one that `requiredPulumiVersion` in Pulumi.yaml refuses.
PULUMI_BELOW = "4.0.0"
# The newest language host that the Go module proxy serves; it drives the SDK of PULUMI.
LANGUAGE_HOST = "3.79.0"
# The `go` line of setup/pulumi/cli/go.mod.
GO = "1.25.11"
PULUMI_FILES = ("pulumi", "pulumi-language-python", "pulumi-language-python-exec", "pulumi-resource-pulumi-python")

SUITE = "trixie"
OFFICIAL_BASE = "debian:trixie"
BASE_IMAGE = "muster-base:trixie"
NODE_IMAGE = "muster-node:24.11"
ENV_VOLUME = "muster-cache-env"
