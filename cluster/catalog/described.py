"""Turn an answer of DescribeInstanceTypes into an entry of instances.json."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

PURCHASES = {"on-demand": "on-demand", "spot": "spot", "capacity-block": "block"}


def to_entry(described: Mapping[str, Any], regions: list[str]) -> dict[str, Any]:
    """Return the entry of instances.json for an instance type that these regions offer."""
    network, cpu = described["NetworkInfo"], described["VCpuInfo"]
    store = described.get("InstanceStorageInfo", {}).get("Disks", [])
    return {
        "vcpus": cpu["DefaultVCpus"],
        "cores": cpu["DefaultCores"],
        "memory_mb": described["MemoryInfo"]["SizeInMiB"],
        "architecture": _architecture(described["ProcessorInfo"]["SupportedArchitectures"]),
        "gpus": [_accelerator(gpu) for gpu in described.get("GpuInfo", {}).get("Gpus", [])],
        "neuron": [_accelerator(chip) for chip in described.get("NeuronInfo", {}).get("NeuronDevices", [])],
        "cards": _cards(network["NetworkCards"]),
        "efa": network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        "store": [[disk["Count"], disk["SizeInGB"]] for disk in store],
        "purchases": sorted(PURCHASES[usage] for usage in described["SupportedUsageClasses"] if usage in PURCHASES),
        "placement": "cluster" in described["PlacementGroupInfo"]["SupportedStrategies"],
        "recovery": described["AutoRecoverySupported"],
        "regions": regions,
    }


def _cards(cards: list[dict[str, Any]]) -> list[list[Any]]:
    """Group identical consecutive cards: number of cards, then interfaces, Gb/s and EFA of each."""
    each = [
        [card["MaximumNetworkInterfaces"], card["PeakBandwidthInGbps"], "efa" in card["InterfaceTypes"]]
        for card in sorted(cards, key=lambda card: card["NetworkCardIndex"])
    ]
    return [[len(list(run)), *shape] for shape, run in groupby(each)]


def _accelerator(described: dict[str, Any]) -> dict[str, Any]:
    memory = described["MemoryInfo"]["SizeInMiB"]
    return {"count": described["Count"], "name": described["Name"], "memory_mb": memory}


def _architecture(supported: list[str]) -> str:
    return "arm64" if "arm64" in supported else "x86_64"
