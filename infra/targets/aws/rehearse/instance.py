"""An instance of a rehearsal: that of moto, and what the rehearsal adds to it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from infra.targets.aws.launcher.node_names import read_node_name

# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html
SERVER_ERROR, TAKEN_BACK = "Server.InternalError", "Server.SpotInstanceTermination"
SHUT_DOWN = "Client.InstanceInitiatedShutdown"
"""Codes of the reasons for which EC2 ends an instance."""
# Codes of EC2's instance states.
_CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}


@dataclass
class Instance:
    """An instance of moto with what the rehearsal adds to it."""

    raw: Any
    role: str
    """Name of its IAM role."""
    draw_key: str = ""
    """What its delays are drawn by: node name and number of the launch, because ids differ in every rehearsal."""
    is_booted: threading.Event = field(default_factory=threading.Event)
    """Set when its container runs, or when it never will."""
    is_registered: bool = False
    """Whether Systems Manager reaches it."""
    is_profile_known: bool = False
    """Whether the metadata service has credentials of its role."""
    listed_at: float = 0
    """When EC2 begins to show it to those who list instances, on the clock of `time.monotonic`."""
    disks: int = 0
    launched_at: float = field(default_factory=time.monotonic)
    ready_at: float | None = None
    """When it reported that it can run jobs."""
    pending_s: float = 0.0
    """Seconds on AWS until it was billed."""
    boot_s: float = 0.0
    """Seconds on AWS that its boots took."""
    started_at: float | None = None
    """When its container was created."""
    container_boot_s: float = 0.0
    """Seconds from then until it read its user data. They are no time of AWS: `boot_s` stands for them."""
    taken_at: datetime | None = None
    """When EC2 takes it back, once that is announced."""

    @property
    def is_spot(self) -> bool:
        return bool(self.raw.lifecycle == "spot")

    @property
    def id(self) -> str:
        return str(self.raw.id)

    @property
    def tags(self) -> dict[str, str]:
        return {tag["key"]: tag["value"] for tag in self.raw.get_tags()}

    @property
    def name(self) -> str:
        """Node name, or the instance id before it has one."""
        return read_node_name(self.tags, self.raw.ami_launch_index) or self.id

    @property
    def access_key(self) -> str:
        """Key id of the credentials of its role, by which its calls are recognized."""
        return f"ASIA{self.id.removeprefix('i-').upper()}"

    @property
    def is_ending(self) -> bool:
        return self.raw._state.name in ("shutting-down", "terminated")

    def read_user_data(self) -> None:
        """Note that it has booted so far that it reads its user data; only the first time counts."""
        if self.started_at is not None and not self.container_boot_s:
            self.container_boot_s = time.monotonic() - self.started_at

    def enter(self, state: str) -> None:
        self.raw._state.name, self.raw._state.code = state, _CODES[state]

    def end(self, code: str, message: str) -> None:
        """End it as EC2 does when nobody has terminated it, with the reason that it then shows."""
        # moto frees its disks and interfaces, calls `Instances.terminate`, and says that the user has done it.
        self.raw.terminate()
        self.raw._reason = f"{code}: {message}"
        self.raw.state_reason.code, self.raw.state_reason.message = code, f"{code}: {message}"

    def power_off(self) -> None:
        """End or stop it as EC2 does when its own operating system shuts it down."""
        if self.raw.instance_initiated_shutdown_behavior == "terminate":
            self.end(SHUT_DOWN, "Instance initiated shutdown")
        else:
            self.raw.stop()

    def fail(self, reason: str) -> None:
        """End as an instance does that EC2 cannot start, so that nobody waits for it."""
        self.is_registered = False
        try:
            self.end(SERVER_ERROR, reason)
        finally:
            self.enter("terminated")
            self.is_booted.set()

    def release_addresses(self) -> None:
        """Let other instances have the addresses that end with it."""
        for interface in self.raw.nics.values():
            if interface.delete_on_termination:
                interface.subnet.del_subnet_ip(interface.private_ip_address)
