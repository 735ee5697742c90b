"""The machines that runs are held against, calibrated or by instance type; others than the run's are refused."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Protocol

from simulator.hardware.rates import Rates, fitted
from simulator.hardware.system import System
from simulator.machines import profile as profiles
from simulator.machines.instances import system, with_gpus
from simulator.machines.profile_catalog import same_gpu
from simulator.machines.profile_fit import crowd
from trainer.config.errors import ConfigError, ConfigProblem

FAR = 1.5
"""Matmul rates that are so many times apart are not of the same machine, or not of an idle one."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a prediction needs; what a step costs beside the model is 0 where nobody measured it."""

    system: System
    rates: Rates
    wait_gb_s: float
    """Of all ranks together: from a save's call until training goes on."""
    write_gb_s: float
    """From the call to the published checkpoint; 0 is not known."""
    data_s: float = 0.0
    other_s: float = 0.0
    is_calibrated: bool = False
    cpu: str = ""
    """Whose ranks were measured; nothing where they were GPUs, or nobody measured."""
    matmul_gflops: float | None = None


class MeasuredRun(Protocol):
    """What a run says about the machines that it ran on; `report.measured` reads it from the run's folder."""

    @property
    def folder(self) -> Path: ...

    @property
    def nodes(self) -> int: ...

    @property
    def per_node(self) -> int: ...

    @property
    def ranks(self) -> int: ...

    @property
    def device(self) -> str: ...

    @property
    def cpu(self) -> str: ...

    @property
    def matmul_gflops(self) -> float | None: ...


class Machines(Protocol):
    name: str

    def of(self, run: MeasuredRun) -> Machine: ...


class Calibrated:
    def __init__(self, path: Path) -> None:
        self.profile = profiles.read(path)
        self.name = f"{self.profile.machine['device']} as calibrated ({path.name})"

    def of(self, run: MeasuredRun) -> Machine:
        device = self.profile.machine["device"]
        if run.device and run.device != device:
            message = f"{device!r} in {self.profile.path}; allowed: {run.device!r}, as {run.folder} ran on"
            fix = f"calibrate there: {profiles.CALIBRATE}"
            raise ConfigError([ConfigProblem("profile.machine.device", message, fix)])
        found = self.profile.of(run.nodes, run.per_node)
        world = self.profile.world(run.nodes, run.per_node)
        saves, short = world["checkpoint"], world["short_run"]
        return Machine(
            system=found.system,
            rates=found.rates,
            wait_gb_s=saves["wait_gb_s"],
            write_gb_s=saves["write_gb_s"],
            data_s=short["data_s"],
            other_s=short["other_s"],
            is_calibrated=True,
            cpu=self.profile.machine.get("cpu", "") if device == "cpu" else "",
            matmul_gflops=_best_gflops(world["products"]["fp32"]) / crowd(self.profile.machine, world),
        )


class OfInstance:
    def __init__(self, name: str) -> None:
        self.gpu, self.name = system(name, 1).gpu.name, name

    def of(self, run: MeasuredRun) -> Machine:
        self._check(run)
        found = system(self.name, max(run.nodes, ceil(run.ranks / system(self.name, 1).gpus_per_node)))
        return Machine(system=found, rates=fitted(), wait_gb_s=found.host_gb_s * run.ranks, write_gb_s=0.0)

    def _check(self, run: MeasuredRun) -> None:
        kind = self.gpu.partition("-")[0]
        if run.device and not same_gpu(kind, run.device):
            alike = [one for one in with_gpus() if same_gpu(system(one, 1).gpu.name.partition("-")[0], run.device)]
            allowed = ", ".join(alike) or "none, the catalog has no such machine"
            message = f"{self.name!r} has {kind}, {run.folder} ran on {run.device!r}; allowed: {allowed}"
            fix = f"calibrate there and use --profile: {profiles.CALIBRATE}"
            raise ConfigError([ConfigProblem("--instance", message, fix)])


def note(machine: Machine, run: MeasuredRun) -> str:
    """Another processor than the profile's, or one that was busy; empty where all is well."""
    alike = run.cpu == machine.cpu if run.cpu and machine.cpu else None
    if alike is False:
        return f"ran on {run.cpu!r}, the profile is of {machine.cpu!r}: calibrate there ({profiles.CALIBRATE})"
    if not (machine.matmul_gflops and run.matmul_gflops):
        return ""
    ratio = run.matmul_gflops / machine.matmul_gflops
    if 1 / FAR <= ratio <= FAR:
        return ""
    unknown = "another machine, or one that others used"
    why = "the same processor, busy with other work in one of the two" if alike else unknown
    return (
        f"reached {run.matmul_gflops:,.0f} GFLOP/s a rank in its trial product, "
        f"the profile has {machine.matmul_gflops:,.0f}: {why}"
    )


def _best_gflops(rows: list[list[float]]) -> float:
    return max(2e-9 * m * n * k / seconds for m, n, k, seconds in rows)
