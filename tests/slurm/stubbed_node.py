"""A node on which the real health program runs, with stubs of Slurm's commands."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.slurm.proc_tree import read_stat


@dataclass(frozen=True)
class StubbedNode:
    """A node on which the real program runs, with stubs of scontrol and sinfo that keep the node's state."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    """Variables that Slurm gives to a prolog or epilog."""
    jobs: tuple[str, ...] = ()
    """Jobs that have processes on the node; this machine may run those of other tests."""

    @classmethod
    def create(cls, folder: Path) -> StubbedNode:
        (folder / "bin").mkdir()
        node = cls(folder)
        node.set_state("gpu-1|idle|none")
        state = folder / "node"
        # The node comes first in the list of its group.
        node.write_tool(
            "sinfo",
            f'case "$*" in *--partition*) IFS="|" read -r name state reason <{state}; '
            f'echo "$name|$state|2026-01-02T00:00:00|$reason"; cat {node.others};; *) cat {state};; esac',
        )
        node.set_others()
        node.write_tool(
            "scontrol",
            f"""case "$3" in
            comment=*) printf "%s" "${{3#comment=}}" >{folder / "comment"} ;;
            state=drain) printf "gpu-1|drained|%s" "${{4#reason=}}" >{state} ;;
            state=down) printf "gpu-1|down|%s" "${{4#reason=}}" >{state} ;;
            state=resume) printf "gpu-1|idle|none" >{state} ;;
            esac""",
        )
        return node

    @property
    def state(self) -> str:
        return (self.folder / "node").read_text()

    @property
    def comment(self) -> str:
        """What the program wrote into the node's comment; empty if it wrote none."""
        path = self.folder / "comment"
        return path.read_text() if path.exists() else ""

    @property
    def others(self) -> Path:
        return self.folder / "others"

    def set_others(self, *lines: str) -> None:
        """Set the lines of sinfo for the other nodes of the group."""
        self.others.write_text("".join(f"{line}\n" for line in lines))

    @property
    def rounds(self) -> Path:
        return self.folder / "health-rounds"

    @property
    def hung(self) -> Path:
        """Folder of what could not be killed."""
        return self.folder / "hung"

    def record_hung(self, pid: int) -> None:
        """Record a process of job 7 as one that could not be killed."""
        self.hung.mkdir(exist_ok=True)
        (self.hung / "7").write_text(f"{pid} {read_stat(pid)[19]} job 7: python (state D)\n")

    def set_state(self, text: str) -> None:
        (self.folder / "node").write_text(text)

    def write_tool(self, name: str, script: str) -> None:
        tool = self.folder / "bin" / name
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)

    def run(self, *arguments: str, **expected: object) -> subprocess.CompletedProcess[str]:
        path = self.folder / "expected.json"
        path.write_text(json.dumps({"disabled": ["disk", "clock"], **expected}))
        program = (
            "import sys; from pathlib import Path; from slurm.health import __main__ as health, dcgm; "
            f"health.EXPECTED = Path({str(path)!r}); health.STATE = Path({str(self.folder)!r}); "
            f"health.RUN = Path({str(self.folder / 'run')!r}); health.GATE = health.RUN / 'gate'; "
            f"dcgm.RESULT = {str(self.folder / 'run' / 'dcgm-1.json')!r}; "
            f"dcgm.AFTER_FAILURE_MARK = {str(self.folder / 'run' / 'dcgm-2')!r}; "
            f"health.stray_jobs.list_local_jobs = lambda: set({self.jobs!r}); "
            f"health.own_node.lost_jobs.list_steps = lambda: set({self.jobs!r}); "
            "health.unkillable.list_job_processes = lambda proc: []; "
            f"health.UNKILLABLE = Path({str(self.hung)!r}); health.unkillable.RECORDS = {str(self.hung)!r}; "
            "health.stray_jobs.signal_jobs = lambda number, jobs: set(jobs); "
            "health.own_node.SETTLE_S = 0.0; sys.exit(health.main(sys.argv[1:]))"
        )
        environment = {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "SLURMD_NODENAME": "gpu-1", **self.variables}
        # As on nodes, only the standard library is there; without site-packages, Python starts three times as fast.
        command = [sys.executable, "-S", "-c", program, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path.cwd())
