"""Cgroups of processes, and the job to which each belongs: for the health checks, and for the epilog's script."""

from __future__ import annotations

JOBS_OF_GROUPS = {
    "/system.slice/slurmstepd.scope/job_12/step_0/user/task_0": "12",
    "/system.slice/gpu-1_slurmstepd.scope/job_12/step_batch/user": "12",
    "/docker/0af3/system.slice/slurmstepd.scope/job_12": "12",
    "/slurm/uid_2000/job_12/step_0/task_0": "12",
    "/slurm_gpu-1/uid_2000/job_12": "12",
    # Of other programs, whose names resemble Slurm's.
    "/": "",
    "/job_12/step_0": "",
    "/slurm/job_12": "",
    "/slurm/uid_2000/x/job_12": "",
    "/slurm/uid_x/job_12": "",
    "/slurm-tools/job_12": "",
    "/slurm-tools/uid_2000/job_12": "",
    "/machine.slice/job_12/x": "",
    "/system.slice/myslurmstepd.scope/job_12": "",
    "/system.slice/slurmstepd-scope/job_12": "",
    "/system.slice/slurmstepd.scope/job_12x": "",
    "/system.slice/slurmstepd.scope/job_": "",
    "/system.slice/slurmstepd.scope/x/job_12": "",
    # Users create them below a systemd of their own, or below a service that runs as them.
    "/user.slice/user-2000.slice/user@2000.service/slurmstepd.scope/job_12": "",
    "/user.slice/user-2000.slice/user@2000.service/job_12": "",
    "/system.slice/notebook.service/slurmstepd.scope/job_12": "",
    "/system.slice/cron.service": "",
}
