"""`python -m infra.targets.aws.launcher resume|suspend|resume-failed|sweep`: what slurmctld and the timer run."""

from __future__ import annotations

import sys

from infra.targets.aws.launcher.launcher import AwsLauncher
from slurm.power.programs import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], AwsLauncher.load))
