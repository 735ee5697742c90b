"""How a machine finds its name: all machines of a launch carry the same tag, and each takes the entry at its index.

EC2 numbers the machines of one RunInstances call from 0 (`ami-launch-index`, also in the instance metadata), and all of
them get the same tags. So one call names 256 machines, without a second call for each
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-metadata.html, "AMI launch index value").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cluster import names
from slurm.hostlist import expand

NUMBERS_TAG = "muster.numbers"
TAG_MAX_CHARS = 256
"""Longest value of an EC2 tag."""


def read_node_name(tags: Mapping[str, str], launch_index: int) -> str | None:
    """Return the node's name; None for a machine that muster did not launch."""
    if names.NODE in tags:
        return tags[names.NODE]
    if names.GROUP not in tags or NUMBERS_TAG not in tags:
        return None
    members = expand(f"{tags[names.GROUP]}-[{tags[NUMBERS_TAG].replace(' ', ',')}]")
    return members[launch_index] if launch_index < len(members) else None


def write_numbers(members: Sequence[str]) -> str:
    """Return the value of NUMBERS_TAG: numbers in the order of `members`, the first for index 0."""
    runs: list[list[int]] = []
    for number in map(names.number_of, members):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
