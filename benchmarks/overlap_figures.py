"""The hidden share of communication, from the times of benchmarks.overlap, which explains them."""

from __future__ import annotations

import sys
from math import ceil
from statistics import median, quantiles
from typing import Any

from benchmarks.figures import Figure

ENGINES = ("torch", "muster")
HIDDEN_PERCENT = 70.0
FEWEST_SAMPLES, MOST_SAMPLES = 2, 128
LEAST_BACKWARD = 1.2
"""Time of the backward pass alone, in multiples of the communication."""


def count_samples(samples: int, backward: float, communication: float) -> int:
    """Return how many samples make the backward pass long enough, from its time on the present number of samples."""
    shortage = LEAST_BACKWARD * communication / backward
    return samples if shortage <= 1 else min(MOST_SAMPLES, ceil(samples * shortage))


def list_overlap(strategy: str, measured: dict[str, Any]) -> list[Figure]:
    """Return the times, and the share that is not hidden of what could be, with its bound."""
    rounds, calls = measured["seconds"], measured["calls"]
    times = {name: median(seconds[name] for seconds in rounds) * 1000 for name in rounds[0]}
    samples = f"forward pass {times['forward']:.0f} ms, {measured['samples']} samples per rank"
    sent = f"{len(calls)} collectives, tensors of {sum(max(sizes) for _, sizes in calls) * 4 / 1e6:.0f} MB"
    processor = {name: median(seconds[name] for seconds in measured["processor_seconds"]) * 1000 for name in rounds[0]}
    figures = [
        Figure(f"{strategy}: compute alone", times["compute"], "ms", samples),
        Figure(f"{strategy}: communication alone", times["communication"], "ms", sent),
        Figure(f"{strategy}: communication alone, processor time", processor["communication"], "ms"),
    ]
    exposed_s = count_exposed_communication_s(measured)
    figures.append(
        Figure(f"{strategy}: communication that the processors cannot hide", exposed_s * 1000, "ms", "all cores")
    )
    valid = [
        seconds for seconds in rounds if count_overlapping_compute_s(strategy, seconds) >= seconds["communication"]
    ]
    if len(valid) * 2 <= len(rounds):
        refuse_rounds(strategy, rounds)
    for engine in ENGINES:
        shares = sorted(100 - find_hidden_percent(strategy, seconds, engine) for seconds in valid)
        low, _, high = quantiles(shares, n=4)
        spread = f"middle half {low:.0f} to {high:.0f}, all {shares[0]:.0f} to {shares[-1]:.0f}, {len(shares)} rounds"
        spread += f" of {len(rounds)}" if len(valid) < len(rounds) else ""
        beyond = processor[engine] - processor["compute"]
        bound = 100 - HIDDEN_PERCENT if engine == "muster" else None
        figures.append(Figure(f"{strategy}, {engine}: together", times[engine], "ms"))
        share = f"{100 * beyond / times['communication']:.0f} % of the communication alone"
        figures.append(Figure(f"{strategy}, {engine}: processor time beyond computing", beyond, "ms", share))
        name = f"{strategy}, {engine}: not hidden of what could be"
        figures.append(Figure(name, median(shares), "%", spread, bound))
        possible = sorted(100 - find_hidden_percent(strategy, seconds, engine, exposed_s) for seconds in valid)
        low, _, high = quantiles(possible, n=4)
        name = f"{strategy}, {engine}: not hidden of what the processors leave to hide"
        figures.append(Figure(name, median(possible), "%", f"middle half {low:.0f} to {high:.0f}"))
        shortest = {part: min(seconds[part] for seconds in rounds) for part in rounds[0]}
        milliseconds = ", ".join(f"{part} {seconds * 1000:.0f} ms" for part, seconds in shortest.items())
        name = f"{strategy}, {engine}: not hidden, by the shortest times"
        figures.append(Figure(name, 100 - find_hidden_percent(strategy, shortest, engine), "%", milliseconds))
    return figures


def find_hidden_percent(strategy: str, seconds: dict[str, float], engine: str, exposed_s: float = 0.0) -> float:
    """Return how much of the communication that could be hidden an engine hides; `exposed_s` of it never could."""
    communication = seconds["communication"]
    hidden = seconds["compute"] + communication - seconds[engine]
    return 100 * hidden / (min(count_overlapping_compute_s(strategy, seconds), communication) - exposed_s)


def count_exposed_communication_s(measured: dict[str, Any]) -> float:
    """Return the seconds of communication that no engine can hide, because all cores have work meanwhile.

    If computing and communication share all cores evenly, a step takes at least their work divided by the cores.
    """
    cores = measured["cores"]

    def find_work(name: str) -> float:
        pairs = zip(measured["seconds"], measured["idle_seconds"], strict=True)
        return median(cores * seconds[name] - idle[name] for seconds, idle in pairs)

    compute = median(seconds["compute"] for seconds in measured["seconds"])
    return max(0.0, (find_work("compute") + find_work("communication")) / cores - compute)


def count_overlapping_compute_s(strategy: str, seconds: dict[str, float]) -> float:
    """Return the seconds of computing that communication could overlap with."""
    return seconds["compute"] - (seconds["forward"] if strategy == "ddp" else 0.0)


def refuse_rounds(strategy: str, rounds: list[dict[str, float]]) -> None:
    """End with the times of rounds that are too short to hide communication in."""
    times = ", ".join(
        f"{count_overlapping_compute_s(strategy, each) * 1000:.0f} of {each['communication'] * 1000:.0f} ms"
        for each in rounds
    )
    sys.exit(
        f"{strategy}: no share can be measured, because in most rounds there is too little to compute while ranks "
        f"communicate ({times}). Run it on a machine without other work, or limit the link less with --overlap-mbit"
    )
