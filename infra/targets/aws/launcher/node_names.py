"""How a machine finds its name: all machines of a launch carry the same tag, and each takes the entry at its index.

EC2 numbers the machines of one RunInstances call from 0 (`ami-launch-index`, also in the instance metadata), and all of
them get the same tags. So one call names 256 machines, without a second call for each
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-metadata.html, "AMI launch index value").
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cluster import names

NUMBERS_TAG = "muster.numbers"
TAG_MAX_CHARS = 256
"""Longest value of an EC2 tag."""
MAX_PER_CALL = 500
"""Machines of a launch. EC2 takes longer for a larger request than for two of half the size; ParallelCluster requests
as many at once."""
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def read_node_name(tags: Mapping[str, str], launch_index: int) -> str | None:
    """Return the node's name; None for a machine that muster did not launch."""
    if names.NODE in tags:
        return tags[names.NODE]
    if names.GROUP not in tags or NUMBERS_TAG not in tags:
        return None
    numbers = _read_numbers(tags[NUMBERS_TAG])
    return f"{tags[names.GROUP]}-{numbers[launch_index]}" if launch_index < len(numbers) else None


def write_numbers(members: Sequence[str]) -> str:
    """Return the value of NUMBERS_TAG: numbers in the order of `members`, the first for index 0."""
    runs: list[list[int]] = []
    for number in map(names.number_of, members):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _read_numbers(value: str) -> list[int]:
    """Return the numbers that `write_numbers` wrote; none if the tag has another form: others can set tags."""
    numbers: list[int] = []
    for part in value.split(" "):
        match = _RANGE.fullmatch(part)
        if not match:
            return []
        first, last = int(match[1]), int(match[2] or match[1])
        if len(numbers) + last - first >= MAX_PER_CALL:
            return []
        numbers += range(first, last + 1)
    return numbers
