"""Regenerate the data files: `python -m cluster.catalog.refresh instances DATE`, or `prices DATE vms.csv`.

Instance types come from the DescribeInstanceTypes answers that the installed moto contains; prices from a table with
the columns of SkyPilot's AWS catalog (catalogs/v7/aws/vms.csv of github.com/skypilot-org/skypilot-catalog).
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

from cluster.catalog.described import to_entry

DATA = Path(__file__).with_name("data")
GPU_FAMILIES = ("p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300", "g5", "g6", "g6e", "g7", "g7e", "gr6")
NEURON_FAMILIES = ("trn1", "trn1n", "trn2")
CPU_FAMILIES = ("c7g", "c7i", "m7g", "m7i", "r7i", "t3", "t4g")
FAMILIES = (*GPU_FAMILIES, *NEURON_FAMILIES, *CPU_FAMILIES)
REGIONS = (
    *("us-east-1", "us-east-2", "us-west-1", "us-west-2", "ca-central-1"),
    *("eu-central-1", "eu-north-1", "eu-west-1", "eu-west-2"),
    *("ap-northeast-1", "ap-northeast-2", "ap-south-1", "ap-southeast-1", "ap-southeast-2"),
)


def main(arguments: list[str]) -> None:
    """Write instances.json or instance_prices.json."""
    match arguments:
        case ["instances", date]:
            (DATA / "instances.json").write_text(render_instances(date))
        case ["prices", date, table]:
            with Path(table).open(newline="") as rows:
                (DATA / "instance_prices.json").write_text(render_prices(date, csv.DictReader(rows)))
        case _:
            sys.exit(f"refresh: invalid arguments '{' '.join(arguments)}'. {__doc__.splitlines()[0]}")


def render_instances(date: str) -> str:
    """Return the text of instances.json; `date` is the date of moto's copy."""
    offered = _regions()
    types = {
        name: to_entry(described, offered[name])
        for name, described in sorted(_moto("instance_types.json.gz").items())
        if _is_in_catalog(name)
    }
    source = f"DescribeInstanceTypes and DescribeInstanceTypeOfferings as in moto {version('moto')}"
    return _by_line({"source": source, "date": date}, "types", types)


def render_prices(date: str, rows: Iterable[Mapping[str, str]]) -> str:
    """Return the text of instance_prices.json: on demand, and the median of the zones' spot prices on that day."""
    on_demand: dict[str, dict[str, float]] = defaultdict(dict)
    spot: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        name, region = row["InstanceType"], row["Region"]
        # The id of a local zone has three parts, e.g. use1-atl2-az1; local zones are left out.
        if not _is_in_catalog(name) or region not in REGIONS or row["AvailabilityZone"].count("-") > 1:
            continue
        if row["Price"]:
            on_demand[name][region] = round(float(row["Price"]), 4)
        if row["SpotPrice"]:
            spot[name, region].append(float(row["SpotPrice"]))
    table = {
        name: {region: [usd, _median(spot.get((name, region)))] for region, usd in sorted(regions.items())}
        for name, regions in sorted(on_demand.items())
    }
    source = "github.com/skypilot-org/skypilot-catalog catalogs/v7/aws/vms.csv, made from the AWS price list"
    return _by_line({"source": source, "date": date, "unit": "USD per hour: on demand, spot"}, "prices", table)


def _is_in_catalog(name: str) -> bool:
    family, _, size = name.partition(".")
    return family in FAMILIES and not size.startswith("metal")


def _regions() -> dict[str, list[str]]:
    folder = files("moto") / "ec2" / "resources" / "instance_type_offerings" / "region"
    regions: dict[str, list[str]] = defaultdict(list)
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        for offer in json.loads(gzip.decompress(file.read_bytes())):
            regions[offer["InstanceType"]].append(offer["Location"])
    return regions


def _moto(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(gzip.decompress((files("moto") / "ec2" / "resources" / name).read_bytes()))
    return content


def _median(prices: list[float] | None) -> float | None:
    return round(median(prices), 4) if prices else None


def _by_line(head: dict[str, str], key: str, table: dict[str, Any]) -> str:
    """Return JSON with one line per entry of the table, so that a changed entry is a diff of one line."""
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(entry)}" for name, entry in table.items())
    first = "".join(f"  {json.dumps(name)}: {json.dumps(text)},\n" for name, text in head.items())
    return f"{{\n{first}  {json.dumps(key)}: {{\n{lines}\n  }}\n}}\n"


if __name__ == "__main__":
    main(sys.argv[1:])
