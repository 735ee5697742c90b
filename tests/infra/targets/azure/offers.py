"""What the subscription that stands in for a real one offers: sizes, zones, quotas, an image."""

from __future__ import annotations

from typing import Any

from tests.infra.targets.azure.fake_arm import FakeArm

FAMILIES = {"Standard_D4s_v5": "standardDSv5Family", "Standard_D8s_v5": "standardDSv5Family"}
H100, H100_FAMILY = "Standard_ND96isr_H100_v5", "standardNDSH100v5Family"
Message = dict[str, Any]


def offer(arm: FakeArm, *, h100_cpus: int = 192, cpus: int = 1000, **h100: Any) -> None:
    """Let the region eastus have machines, and quotas for some CPUs; `h100` changes what it says of that size."""
    sizes = {**FAMILIES, H100: H100_FAMILY}
    skus: list[Message] = [
        {
            "resourceType": "virtualMachines",
            "name": name,
            "family": family,
            "locationInfo": [{"location": "eastus", "zones": ["1", "2", "3"]}],
            "restrictions": [],
        }
        for name, family in sizes.items()
    ]
    skus[-1] |= h100
    arm.answers["/Microsoft.Compute/skus"] = {"value": skus}
    limits = {"cores": cpus, "standardDSv5Family": 100, H100_FAMILY: h100_cpus}
    arm.answers["/locations/eastus/usages"] = {
        "value": [
            {"name": {"value": name, "localizedValue": name}, "currentValue": 0, "limit": limit}
            for name, limit in limits.items()
        ]
    }
    arm.answers["/versions/24.04.2025091701"] = {"properties": {}}
    arm.answers["/getRequiredAmlFSSubnetsSize"] = {"filesystemSubnetSize": 24}
