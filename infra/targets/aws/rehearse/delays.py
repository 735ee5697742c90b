"""How long AWS takes: a table of delays with their sources, drawn from a seed so that an order can be replayed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Delay:
    """A range of seconds, and where the range comes from."""

    least_s: float
    most_s: float
    source: str

    def __post_init__(self) -> None:
        if not 0 <= self.least_s <= self.most_s:
            raise ValueError(f"a delay of {self.least_s:g} to {self.most_s:g} s; allowed: 0 <= least <= most")


_EC2_LIFECYCLE = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-lifecycle.html"
_NAT = "https://docs.aws.amazon.com/vpc/latest/userguide/nat-gateway-basics.html"
_EFS = "https://docs.aws.amazon.com/efs/latest/ug/accessing-fs.html"
_FSX = "https://docs.aws.amazon.com/fsx/latest/LustreGuide/file-system-lifecycle-states.html"
_EFS_DELETION = "https://docs.aws.amazon.com/efs/latest/ug/API_DeleteMountTarget.html"
_FSX_DELETION = "https://docs.aws.amazon.com/fsx/latest/APIReference/API_DeleteFileSystem.html"
_NAT_DELETION = "https://docs.aws.amazon.com/vpc/latest/userguide/nat-gateway-working-with.html"
_SHORTAGE = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/troubleshooting-launch.html"
_SPOT = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html"
_ASSUMED = "assumed: AWS publishes no figure"
# benchmarks/node_packages.py prints both; see docs/aws.md, Cold start.
_PACKAGES = (
    "the lower figure is about the processor time of real apt in a container of Ubuntu 22.04 Server, "
    "without the download of the archive from S3; the upper one is twice as much, assumed for the disks "
    "and mirrors of EC2"
)
TABLE: Mapping[str, Delay] = {
    "instance listing": Delay(
        0, 10, f"https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html; seconds are {_ASSUMED}"
    ),
    "instance pending": Delay(5, 30, f"{_EC2_LIFECYCLE}; seconds are {_ASSUMED}"),
    "operating system boot": Delay(15, 60, _ASSUMED),
    "large operating system boot": Delay(60, 240, f"machines with eight GPUs; {_ASSUMED}"),
    "instance shutting down": Delay(10, 60, f"{_EC2_LIFECYCLE}; seconds are {_ASSUMED}"),
    "agent registration": Delay(5, 60, _ASSUMED),
    "image creation": Delay(120, 600, f"snapshot of a disk; {_ASSUMED}"),
    "volume attachment": Delay(2, 15, _ASSUMED),
    "instance profile": Delay(0, 15, "https://docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot.html"),
    "package lists": Delay(12, 24, _PACKAGES),
    "package installation": Delay(11, 22, _PACKAGES),
    "installation from the archive": Delay(8, 16, _PACKAGES),
    "Slurm build": Delay(300, 900, f"on the controller, with all its CPUs; {_ASSUMED}"),
    "NAT gateway": Delay(60, 180, f"{_NAT}; seconds are {_ASSUMED}"),
    "EFS mount target": Delay(60, 120, f"{_EFS}; seconds are {_ASSUMED}"),
    "FSx filesystem": Delay(300, 900, f"{_FSX}; seconds are {_ASSUMED}"),
    "NAT gateway deletion": Delay(30, 120, f"{_NAT_DELETION}; seconds are {_ASSUMED}"),
    "EFS mount target deletion": Delay(20, 90, f"with its network interface, {_EFS_DELETION}; seconds are {_ASSUMED}"),
    "FSx filesystem deletion": Delay(60, 300, f"{_FSX_DELETION}; seconds are {_ASSUMED}"),
    "capacity shortage": Delay(
        60, 300, f"AWS advises to try again after a few minutes: {_SHORTAGE}; seconds are {_ASSUMED}"
    ),
    "spot notice": Delay(120, 120, _SPOT),
}

THROTTLED_SHARE = 0.15
"""Share of calls that the scenario `throttling` rejects. AWS rejects what exceeds a rate per account, region and call
(https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html); how often others in the account use it up is
assumed."""
LATE_LISTING_S = 75.0
"""Seconds by which `late-listing` lists instances late: longer than the minute between two sweeps. AWS names no limit
(https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html)."""

RESOURCES = ("NAT gateway", "EFS mount target", "FSx filesystem")
"""Delays of what machines need before they are launched."""


@dataclass(frozen=True)
class Clock:
    """Draws delays from a seed and shortens them: with `speed` 10, a minute of AWS takes 6 seconds."""

    seed: int
    speed: float
    table: Mapping[str, Delay] = field(default_factory=lambda: TABLE)
    sleep: Callable[[float], object] = time.sleep
    note: Callable[[float], object] = lambda _: None
    """Is told how long a shortened wait takes, when it begins."""

    def __post_init__(self) -> None:
        if not self.speed > 0:
            raise ValueError(f"speed: {self.speed:g} is not a number above 0")

    def draw(self, kind: str, subject: str) -> float:
        """Return the seconds on AWS that `kind` takes for `subject`, the same for the same seed and subject.

        A subject must be the same in every rehearsal, such as a node name; ids of AWS are not.
        """
        delay = self.table[kind]
        return random.Random(f"{self.seed} {kind} {subject}").uniform(delay.least_s, delay.most_s)  # noqa: S311  # no secret: a seed must repeat it

    def wait(self, kind: str, subject: str) -> float:
        """Wait as long as `kind` takes for `subject`, shortened by `speed`; return the seconds on AWS."""
        seconds = self.draw(kind, subject)
        self.note(seconds / self.speed)
        self.sleep(seconds / self.speed)
        return seconds
