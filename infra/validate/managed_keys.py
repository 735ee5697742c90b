"""Keys of slurm.conf that stay ours: what stands for them in the spec, or None where the cluster would break."""

from __future__ import annotations

MANAGED: dict[str, str | None] = {
    "ClusterName": "name",
    "DefaultTime": "slurm.default_time",
    "KillWait": "slurm.kill_wait_s",
    "MaxTime": "slurm.max_time",
    "NodeName": "groups",
    "NodeSet": "groups",
    "PartitionName": "groups",
    "SlurmdTimeout": "slurm.slurmd_timeout_s",
    **dict.fromkeys(
        (
            "AccountingStorageEnforce",
            "AccountingStorageHost",
            "AccountingStorageTRES",
            "AccountingStorageType",
            "AuthInfo",
            "AuthType",
            "CredType",
            "GresTypes",
            "Include",
            "JobAcctGatherType",
            "ProctrackType",
            "PrologFlags",
            "ResumeProgram",
            "SelectType",
            "SelectTypeParameters",
            "SlurmUser",
            "SlurmctldHost",
            "SlurmctldLogFile",
            "SlurmctldParameters",
            "SlurmctldPort",
            "SlurmdLogFile",
            "SlurmdParameters",
            "SlurmdPort",
            "SlurmdSpoolDir",
            "SlurmdUser",
            "StateSaveLocation",
            "SuspendProgram",
            "TaskPlugin",
            "TaskProlog",
        )
    ),
}
