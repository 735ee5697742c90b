"""The server that stands in for Azure: it ends only when no machine is starting any more."""

from __future__ import annotations

import time
from threading import Event

from tests.infra.targets.azure.arm_machines import NoMachines
from tests.infra.targets.azure.arm_server import serve_arm
from tests.infra.targets.azure.fake_arm import FakeArm
from tests.infra.targets.azure.specs import SUBSCRIPTION

GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/muster-demo"
INTERFACE = f"{GROUP}/providers/Microsoft.Network/networkInterfaces/muster-demo-controller"


class SlowMachines(NoMachines):
    """Machines that start a moment later."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = Event()
        self.started: tuple[str, ...] = ()

    def place(self, id_: str, host: str) -> str:
        self.begun.set()
        time.sleep(0.2)
        self.started = (*self.started, host)
        return super().place(id_, host)


def test_no_machine_starts_after_the_server_has_ended() -> None:
    """Whoever removes machines then would miss it."""
    machines = SlowMachines()
    with serve_arm(FakeArm(machines)) as arm:
        arm.handle("PUT", GROUP, {"location": "eastus"})
        arm.handle("PUT", INTERFACE, {"properties": {"ipConfigurations": [{"properties": {}}]}})
        # One that has not begun when the server ends never starts.
        assert machines.begun.wait(60)
    assert machines.started == ("controller",)
