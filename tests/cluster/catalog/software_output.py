"""Software versions as real nodes print them, from public reports, and the output of a fully equipped machine."""

from __future__ import annotations

OPEN_DRIVER = (  # github.com/cpnr/computing/issues/109
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.09  Release Build  "
    "(dvs-builder@U22-I3-AM02-24-3)  Wed Jan  7 22:51:36 UTC 2026\n"
    "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04.1)\n"
)
CLOSED_DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.135  Fri Jan 10 20:00:00 UTC 2025\n"
MANAGER = "\n\n\n\tFabric Manager version is : 535.161.08\n\n"
EFA = (  # github.com/aws/aws-parallelcluster-cookbook/pull/1882
    "# EFA installer version: 1.22.0\n# Debug packages installed: no\n# Packages installed:\n"
    "efa-config-1.13-1.el8.noarch efa-profile-1.5-1.el8.noarch libfabric-aws-1.17.0-1.el8.x86_64\n"
)
# github.com/ofiwg/libfabric/issues/9649
FI_INFO = "fi_info: 1.19.0amzn3.0\nlibfabric: 1.19.0amzn3.0\nlibfabric api: 1.19\n"

GOOD = {
    "driver": OPEN_DRIVER,
    "fabric_manager": "Fabric Manager version is : 580.126.09\n",
    "efa_installer": EFA.replace("1.22.0", "1.50.0"),
    "efa": "3.3.0g\n",
    "libfabric": FI_INFO.replace("1.19.0amzn3.0", "2.6.0amzn1.0"),
    "aws_ofi_nccl": "Initializing aws-ofi-nccl 1.21.1\n",
    "gdrcopy": "2.5.2\n",
    "nccl": "nvidia-nccl-cu13==2.30.7",
}
