"""The job of examples/own_model.py, with stubs for Slurm's commands: where Python looks for packages."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

JOB = Path(__file__).parents[2] / "examples" / "own_model.sbatch"
STUBS = {
    "scontrol": "printf '%s\\n' gpu-1 gpu-2",
    "srun": 'echo "$PYTHONPATH"; echo "$PET_RDZV_ID $PET_RDZV_ENDPOINT"; echo "$*"',
}


@pytest.mark.parametrize(
    ("own", "path"), [(None, "/shared/muster"), ("/home/ada/packages", "/shared/muster:/home/ada/packages")]
)
def test_packages_of_the_user_stay_visible(own: str | None, path: str, tmp_path: Path) -> None:
    for name, body in STUBS.items():
        stub = tmp_path / name
        stub.write_text(f"#!/bin/bash\n{body}\n")
        stub.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": "/home/ada", "SLURM_JOB_NODELIST": "gpu-[1-2]"}
    environment |= {"PYTHONPATH": own} if own else {}
    job = subprocess.run(["bash", str(JOB)], env=environment, capture_output=True, text=True, check=True)
    assert job.stdout.splitlines()[0] == path
    assert "rdzv-id" not in job.stdout
    assert re.search(r"^[0-9a-f-]{36} gpu-1:2\d{4}$", job.stdout, re.MULTILINE)
    assert "/home/ada/own_model.py --strategy ddp" in job.stdout
