"""Turn an answer of DescribeInstanceTypes into an entry of instances.json."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

PURCHASES = {"on-demand": "on-demand", "spot": "spot", "capacity-block": "block"}


def to_entry(described: Mapping[str, Any], regions: list[str]) -> dict[str, Any]:
    """Return the entry of instances.json for an instance type that these regions offer."""
    network, cpu = described["NetworkInfo"], described["VCpuInfo"]
    efa = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    store = described.get("InstanceStorageInfo", {}).get("Disks", [])
    return {
        "vcpus": cpu["DefaultVCpus"],
        "cores": cpu["DefaultCores"],
        "memory_mb": described["MemoryInfo"]["SizeInMiB"],
        "architecture": _architecture(described["ProcessorInfo"]["SupportedArchitectures"]),
        "gpus": [_accelerator(gpu) for gpu in described.get("GpuInfo", {}).get("Gpus", [])],
        "neuron": [_accelerator(chip) for chip in described.get("NeuronInfo", {}).get("NeuronDevices", [])],
        "cards": _cards(network["NetworkCards"], efa),
        "efa": efa,
        "store": [[disk["Count"], disk["SizeInGB"]] for disk in store],
        "purchases": sorted(PURCHASES[usage] for usage in described["SupportedUsageClasses"] if usage in PURCHASES),
        "placement": "cluster" in described["PlacementGroupInfo"]["SupportedStrategies"],
        "recovery": described["AutoRecoverySupported"],
        "regions": regions,
    }


def spread_efa(cards: list[int], limit: int) -> list[int]:
    """Return the cards that get an EFA interface: all that can, or as many of them as a machine may have.

    Neighbouring cards belong to the same GPU, so a choice is spread over all of them.
    """
    able = sorted(cards)
    return able if len(able) <= limit else [able[index * len(able) // limit] for index in range(limit)]


def _cards(cards: list[dict[str, Any]], efa: int) -> list[list[Any]]:
    """Group identical consecutive cards: number of cards, then interfaces, Gb/s and EFA of each."""
    able = [card["NetworkCardIndex"] for card in cards if "efa" in card["InterfaceTypes"]]
    used = spread_efa(able, efa)
    each = [
        [card["MaximumNetworkInterfaces"], card["PeakBandwidthInGbps"], card["NetworkCardIndex"] in used]
        for card in sorted(cards, key=lambda card: card["NetworkCardIndex"])
    ]
    return [[len(list(run)), *shape] for shape, run in groupby(each)]


def _accelerator(described: dict[str, Any]) -> dict[str, Any]:
    memory = described["MemoryInfo"]["SizeInMiB"]
    return {"count": described["Count"], "name": described["Name"], "memory_mb": memory}


def _architecture(supported: list[str]) -> str:
    return "arm64" if "arm64" in supported else "x86_64"
