"""The machines that measured runs are compared with, by profile or instance type; other machines are an error."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from simulator.hardware.rates import Rates
from simulator.hardware.system import System
from simulator.machines import profile as profiles
from simulator.machines.instances import system, with_gpus
from simulator.machines.profile import CALIBRATE
from simulator.machines.profile_catalog import is_same_gpu
from simulator.machines.profile_fit import threads_per_core
from simulator.machines.sources import InstanceMachines
from simulator.report.measured import MeasuredRun
from trainer.config.errors import ConfigError, ConfigProblem

SAME_MACHINE_FACTOR = 1.5
"""Matrix product rates that differ by more are not of the same machine, or one of the machines was busy."""


@dataclass(frozen=True, kw_only=True)
class RunMachine:
    """The machine of a run as a prediction needs it; overheads that nobody measured are 0."""

    system: System
    rates: Rates
    wait_gb_s: float
    """Checkpoint rate of all ranks together, from the call of a save until training continues."""
    write_gb_s: float
    """Checkpoint rate from the call to the published checkpoint; 0 is unknown."""
    data_s: float = 0.0
    other_s: float = 0.0
    is_calibrated: bool = False
    cpu: str = ""
    """Processor of the measured ranks; empty if they were GPUs or nothing was measured."""
    matmul_gflops: float | None = None


class MachineLookup(Protocol):
    """Machines to compare runs with."""

    name: str

    def of(self, run: MeasuredRun) -> RunMachine:
        """Return the machine of a run; raise ConfigError if the run was on other machines."""


class ProfiledMachines:
    """Machines as a profile describes them."""

    def __init__(self, path: Path) -> None:
        self.profile = profiles.read(path)
        self.name = f"{self.profile.machine['device']} as calibrated ({path.name})"

    def of(self, run: MeasuredRun) -> RunMachine:
        device = self.profile.machine["device"]
        if run.device and run.device != device:
            message = f"{device!r} in {self.profile.path}; allowed: {run.device!r}, the device that {run.folder} ran on"
            fix = f"calibrate that machine: {CALIBRATE}"
            raise ConfigError([ConfigProblem("profile.machine.device", message, fix)])
        rated = self.profile.of(run.nodes, run.per_node)
        world = self.profile.world(run.nodes, run.per_node)
        saves, short = world["checkpoint"], world["short_run"]
        return RunMachine(
            system=rated.system,
            rates=rated.rates,
            wait_gb_s=saves["wait_gb_s"],
            write_gb_s=saves["write_gb_s"],
            data_s=short["data_s"],
            other_s=short["other_s"],
            is_calibrated=True,
            cpu=self.profile.machine.get("cpu", "") if device == "cpu" else "",
            matmul_gflops=_best_gflops(world["products"]["fp32"]) / threads_per_core(self.profile.machine, world),
        )


class CatalogMachines:
    """Machines of an instance type, by their data sheets."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._gpu = _kind_of_gpu(name)

    def of(self, run: MeasuredRun) -> RunMachine:
        self._check(run)
        machines = InstanceMachines(self.name)
        rated = machines.rated(max(run.nodes, machines.nodes(run.ranks)), run.per_node)
        wait_gb_s = rated.system.host_gb_s * run.ranks
        return RunMachine(system=rated.system, rates=rated.rates, wait_gb_s=wait_gb_s, write_gb_s=0.0)

    def _check(self, run: MeasuredRun) -> None:
        if run.device and not is_same_gpu(self._gpu, run.device):
            matching = [name for name in with_gpus() if is_same_gpu(_kind_of_gpu(name), run.device)]
            allowed = ", ".join(matching) or "none, the catalog has no machine with that GPU"
            message = f"{self.name!r} has {self._gpu}, {run.folder} ran on {run.device!r}; allowed: {allowed}"
            fix = f"calibrate that machine and use --profile: {CALIBRATE}"
            raise ConfigError([ConfigProblem("--instance", message, fix)])


def describe_difference(machine: RunMachine, run: MeasuredRun) -> str:
    """Return a note if the run's processor is not the profile's or was busy; empty if they agree."""
    same_cpu = run.cpu == machine.cpu if run.cpu and machine.cpu else None
    if same_cpu is False:
        return f"ran on {run.cpu!r}, the profile is of {machine.cpu!r}: calibrate that machine ({CALIBRATE})"
    if not (machine.matmul_gflops and run.matmul_gflops):
        return ""
    ratio = run.matmul_gflops / machine.matmul_gflops
    if 1 / SAME_MACHINE_FACTOR <= ratio <= SAME_MACHINE_FACTOR:
        return ""
    unknown = "a different machine, or a busy one"
    reason = "the same processor, busy with other work in one of the two" if same_cpu else unknown
    return (
        f"reached {run.matmul_gflops:,.0f} GFLOP/s a rank in its trial product, "
        f"the profile has {machine.matmul_gflops:,.0f}: {reason}"
    )


def _kind_of_gpu(instance: str) -> str:
    return system(instance, 1).gpu.name.partition("-")[0]


def _best_gflops(rows: list[list[float]]) -> float:
    return max(2e-9 * m * n * k / seconds for m, n, k, seconds in rows)
