"""Measure how long rehearsals take on this machine, and print what they measured in the time of AWS.

python -m benchmarks.aws_rehearsal
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure, report
from infra.targets.aws.rehearse.cold_start import MAX_AFTER_BOOT_S

REPO = Path(__file__).resolve().parent.parent
MAX_BAKED_PERCENT = 50
"""Of the time that a node from AWS's image takes to its first job, counted from the end of the machine's own boot."""
MAX_IDLE_PERCENT = 20
"""Of what idle GPU nodes would cost if all machines were launched at once."""


@dataclass(frozen=True)
class Rehearsed:
    """A rehearsal, its options, and its bound in seconds of wall time up to the end of its first job."""

    options: Sequence[str]
    at_most: float | None = None


REHEARSALS: Mapping[str, Rehearsed] = {
    "g6 pair, job on 2 nodes": Rehearsed(("--stack", "aws-g6-pair", "--speed", "20"), 300),
    "p5 autoscaled, job on 16 nodes": Rehearsed(
        ("--stack", "aws-p5-autoscaled", "--speed", "30", "--nodes", "16"), 600
    ),
    "p5en with Lustre, job on 2 static nodes": Rehearsed(("--stack", "aws-p5en-lustre", "--speed", "20")),
    "g6 pair, baked images": Rehearsed(("--stack", "aws-g6-pair", "--speed", "20", "--scenario", "image-refresh")),
}


def make_figures(name: str, rehearsed: Rehearsed, output: str) -> Iterator[Figure]:
    """Yield the figures in the output of a rehearsal that has passed."""
    wall = re.search(r"rehearsed in (\d+) s", output)
    if wall is None:
        raise ValueError(f"{name}: the output has no line `rehearsed in`")
    job = re.search(r"^ *([\d.]+) s  job \d+: completed$", output, re.M)
    if job is None:
        raise ValueError(f"{name}: no job has completed")
    reference = f"on this machine; {wall[1]} s with teardown"
    yield Figure(f"{name}: up to the end of the first job", float(job[1]), "s", reference, rehearsed.at_most)
    if cold := re.search(r"^cold start: the job ran (\d+) s after sbatch in simulated time: (.+)$", output, re.M):
        yield Figure(f"{name}: submit to start", float(cold[1]), "s on AWS", cold[2])
    if idle := re.search(r"^idle GPU nodes: ([\d.]+) USD .*; ([\d.]+) USD if all machines were launched", output, re.M):
        percent = 100 * float(idle[1]) / float(idle[2])
        reference = f"{idle[1]} USD instead of {idle[2]} USD if launched at once"
        yield Figure(f"{name}: idle GPU nodes at the first up", percent, "%", reference, MAX_IDLE_PERCENT)
    if baked := re.search(r"^from a baked image: boot (\d+) s \+ (\d+) s", output, re.M):
        reference = f"besides a boot of {baked[1]} s"
        yield Figure(f"{name}: submit to start", float(baked[2]), "s on AWS", reference, MAX_AFTER_BOOT_S)
    if images := re.search(
        r"^boot to first job on AWS: (\d+) s .*image, (\d+) s .*image: (\d+)%; .*, (\d+)% without it$", output, re.M
    ):
        reference = f"{images[2]} s instead of {images[1]} s on AWS with the boots as drawn, {images[3]} %"
        what = f"{name}: from the machine's boot to the end of the first job"
        yield Figure(what, float(images[4]), "%", reference, MAX_BAKED_PERCENT)


def rehearse(rehearsed: Rehearsed) -> str:
    """Run a rehearsal and return its output; raise CalledProcessError if it fails."""
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "muster.cli", "rehearse", *rehearsed.options]
        env = {**os.environ, "MUSTER_HOME": home}
        return subprocess.run(command, cwd=REPO, env=env, text=True, stdout=subprocess.PIPE, check=True).stdout


def main() -> int:
    """Rehearse, print the figures and return 1 if one exceeds its bound."""
    figures = [
        figure
        for name, rehearsed in REHEARSALS.items()
        for figure in make_figures(name, rehearsed, rehearse(rehearsed))
    ]
    print(report(figures))
    return int(any(figure.verdict == "FAIL" for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
