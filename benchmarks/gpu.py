"""Measure training steps on one GPU against the floor of the same run, and what each optimisation brings.

    python -m benchmarks.gpu [CASE ...] [--without NAME ...] [--profile] [--json FILE]

The floor (gpu_floor.py) and the step run in turns, after matrix products have heated the GPU to its power limit, so
that both see the clock of sustained training. With --without, each case also runs without an optimisation, or without
several of them joined by +. Needs torch and a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_cases import CASES, DEVICE, SWITCHES, leave_out, make_batch, make_step
from benchmarks.gpu_floor import make_floor
from benchmarks.gpu_profile import profile_steps
from trainer.table import table

_HEAT_SIZE = 8192
_HEAT_S = 2.0
_WARMUP_STEPS = 6
_STEPS_IN_FLIGHT = 4


@dataclass(frozen=True)
class Measurement:
    """A measured case."""

    case: str
    without: str
    step_ms: float
    floor_ms: float
    """0 if the floor was not measured."""
    per_s: float
    """Tokens or images per second."""
    memory_gib: float
    first_steps_s: float
    """Time of the first steps, with compilation."""
    peer: str
    peer_per_s: int


def main() -> int:
    """Measure the cases, print a table and the profiles, and return 1 if a case failed."""
    options = _parse(sys.argv[1:])
    measurements, profiles, failures = [], [], []
    for name in options.cases:
        for without in ["", *options.without]:
            try:
                with leave_out(without):
                    measured, profile = measure(name, without, options)
            except torch.OutOfMemoryError as error:
                failures.append(f"{_name_case(name, without)}: {error}")
                continue
            finally:
                _free()
            measurements.append(measured)
            print(json.dumps(asdict(measured)), flush=True)
            if profile:
                profiles.append(f"\n{_name_case(name, without)}\n{profile}")
            if options.json:
                options.json.write_text(json.dumps([asdict(each) for each in measurements], indent=1) + "\n")
    print(report(measurements))
    print("\n".join([*profiles, *failures]))
    return int(bool(failures))


def measure(name: str, without: str, options: argparse.Namespace) -> tuple[Measurement, str]:
    """Measure one case, in turns with its floor."""
    case = CASES[name]
    config = case.load()
    torch.cuda.reset_peak_memory_stats()
    step, batch = make_step(config), make_batch(config, case.samples)

    def run() -> None:
        step.run(batch, case.samples)

    began = time.perf_counter()
    for _ in range(_WARMUP_STEPS):
        run()
    torch.cuda.synchronize()
    first_steps_s, memory = time.perf_counter() - began, torch.cuda.max_memory_allocated()
    # A variant is compared with its case, so one floor is enough.
    has_floor = not (without or options.no_floor or not options.rounds)
    floor = make_floor(config, case.samples) if has_floor else None
    if options.rounds:
        heat(_HEAT_S)
    step_times, floor_times = [], []
    for _ in range(options.rounds):
        if floor is not None:
            floor_times.append(time_runs(floor, options.seconds))
        step_times.append(time_runs(run, options.seconds))
    step_s = sum(step_times) / len(step_times) if step_times else math.nan
    measured = Measurement(
        case=name,
        without=without,
        step_ms=step_s * 1000,
        floor_ms=sum(floor_times) / max(1, len(floor_times)) * 1000,
        per_s=batch["targets"].numel() / step_s,
        memory_gib=memory / 2**30,
        first_steps_s=first_steps_s,
        peer=case.peer,
        peer_per_s=case.peer_rate,
    )
    del floor
    return measured, profile_steps(run).describe() if options.profile else ""


def time_runs(run: Callable[[], Any], seconds: float) -> float:
    """Return the seconds of a run, from as many as fit; the host waits for the GPU every few of them."""
    run()
    torch.cuda.synchronize()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(_STEPS_IN_FLIGHT):
            run()
        torch.cuda.synchronize()
        count += _STEPS_IN_FLIGHT
    return (time.perf_counter() - began) / count


def heat(seconds: float) -> None:
    """Multiply large matrices back to back."""
    a, b, result = (torch.randn(_HEAT_SIZE, _HEAT_SIZE, device=DEVICE, dtype=torch.bfloat16) for _ in range(3))
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(10):
            torch.mm(a, b, out=result)
        torch.cuda.synchronize()


def report(measurements: list[Measurement]) -> str:
    """Return the measurements as a table; variants are compared with their case."""
    usual = {each.case: each for each in measurements if not each.without}
    rows = []
    for each in measurements:
        slower = f"{each.step_ms / usual[each.case].step_ms - 1:+.1%}" if each.without and each.case in usual else ""
        rows.append(
            (
                _name_case(each.case, each.without),
                f"{each.step_ms:.1f}",
                f"{each.per_s:,.0f}",
                f"{each.floor_ms:.1f}" if each.floor_ms else "",
                f"{each.floor_ms / each.step_ms:.1%}" if each.floor_ms else "",
                f"{each.per_s / each.peer_per_s:.2f} x {each.peer}" if each.peer_per_s else "",
                slower,
                f"{each.memory_gib:.1f}",
            )
        )
    heads = ("step", "ms", "per second", "floor, ms", "of the floor", "peer", "time without it", "GiB")
    return table(heads, rows)


def _name_case(name: str, without: str) -> str:
    return f"{name} without {without}" if without else name


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"any of {', '.join(CASES)}; all if none is given")
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME", help=f"{', '.join(SWITCHES)}; joined by +")
    parser.add_argument("--rounds", type=int, default=2, help="turns; 0 only compiles, which fills the cache")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn")
    parser.add_argument("--no-floor", action="store_true")
    parser.add_argument("--profile", action="store_true", help="name the ten largest kernels of each step")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    options.cases = options.cases or list(CASES)
    names = {name for joined in options.without for name in joined.split("+")}
    for option, given, allowed in (("CASE", set(options.cases), CASES), ("--without", names, SWITCHES)):
        if unknown := sorted(given - set(allowed)):
            parser.error(f"{option}: {', '.join(unknown)}; allowed: {', '.join(allowed)}")
    return options


def _free() -> None:
    """Free the memory and the compiled code of the last case."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
