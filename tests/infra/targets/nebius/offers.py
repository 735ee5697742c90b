"""What the project that stands in for a real one offers: platforms, presets, and room on a fabric."""

from __future__ import annotations

from typing import Any

from tests.infra.targets.nebius.fake_cloud import FakeCloud

PLATFORMS: dict[str, dict[str, dict[str, Any]]] = {
    "cpu-d3": {"8vcpu-32gb": {}, "4vcpu-16gb": {}},
    "gpu-h100-sxm": {
        "1gpu-16vcpu-200gb": {"resources": {"gpuCount": 1}},
        "8gpu-128vcpu-1600gb": {"resources": {"gpuCount": 8}, "allowGpuClustering": True},
    },
}
H100 = {"platform": "gpu-h100-sxm", "preset": {"name": "8gpu-128vcpu-1600gb"}}


def offer(cloud: FakeCloud, available: int, state: str = "DATA_STATE_FRESH") -> None:
    """Let a project have the platforms, and room for some H100 machines on a fabric."""
    presets = {name: [{"name": p, **facts} for p, facts in offered.items()] for name, offered in PLATFORMS.items()}
    cloud.answers["Project/Get"] = {"metadata": {"id": "project-e00test", "parentId": "tenant-e00test"}}
    cloud.answers["Platform/List"] = {
        "items": [{"metadata": {"name": name}, "spec": {"presets": listed}} for name, listed in presets.items()]
    }
    cloud.answers["Image/Get"] = {"metadata": {"id": "computeimage-e00debian"}}
    advice = {
        "spec": {"fabric": "fabric-3", "computeInstance": H100},
        "status": {"onDemand": {"dataState": state, "available": str(available)}},
    }
    cloud.answers["ResourceAdvice/List"] = {"items": [advice]}
