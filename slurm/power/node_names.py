"""How a machine knows its name: all of one launch carry the same tag with the numbers, each takes the one at its index.

EC2 numbers the machines of one RunInstances call from 0 (`ami-launch-index`, also in the instance metadata), and all of
them get the same tags. So 256 machines are named by the call that starts them, at once and with no second call for each
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-metadata.html, "AMI launch index value")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cluster import names
from slurm.hostlist import expand

NUMBERS = "muster.numbers"
# Of an EC2 tag's value.
LONGEST = 256


def name_of(tags: Mapping[str, str], launch_index: int) -> str | None:
    """The node's name; None for a machine that no launch of ours started."""
    if names.NODE in tags:
        return tags[names.NODE]
    if names.GROUP not in tags or NUMBERS not in tags:
        return None
    called = expand(f"{tags[names.GROUP]}-[{tags[NUMBERS].replace(' ', ',')}]")
    return called[launch_index] if launch_index < len(called) else None


def tag_of(members: Sequence[str]) -> str:
    """The value of the tag NUMBERS, in the order of `members`: the first is for index 0."""
    runs: list[list[int]] = []
    for number in map(number_of, members):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def group_of(node: str) -> str:
    return node.rpartition("-")[0]


def number_of(node: str) -> int:
    return int(node.rpartition("-")[2])
