"""The slurm.conf keys that slurm.extra may not set: those that the cluster sets itself, and those that run code.

Code that Slurm runs as root would give the nodes to whoever edits the stack.
"""

from __future__ import annotations

import re
from typing import Literal

# With the spec field for each; None if changing it would break the cluster.
MANAGED: dict[str, str | None] = {
    "ClusterName": "name",
    "DefaultTime": "slurm.default_time",
    "KillWait": "slurm.kill_wait_s",
    "MaxTime": "slurm.max_time",
    "NodeName": "groups",
    "NodeSet": "groups",
    "PartitionName": "slurm.partitions",
    "ResumeTimeout": "slurm.resume_s",
    "SlurmdTimeout": "slurm.slurmd_timeout_s",
    "SuspendTime": "slurm.suspend_s",
    **dict.fromkeys(
        (
            "AccountingStorageEnforce",
            "AccountingStorageHost",
            "AccountingStorageTRES",
            "AccountingStorageType",
            "AuthInfo",
            "AuthType",
            "CommunicationParameters",
            "CredType",
            "DisableRootJobs",
            "GresTypes",
            "Include",
            "JobAcctGatherType",
            "JobContainerType",
            "NamespaceType",
            "ProctrackType",
            "PrologFlags",
            "ResumeFailProgram",
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
            "SuspendExcNodes",
            "SuspendProgram",
            "TaskPlugin",
            "TaskProlog",
            "TopologyPlugin",
        )
    ),
}

Danger = Literal["runs a program", "loads code", "names a file that a daemon writes", "changes who is trusted"]
# Not a list of what is allowed: of the 200 keys most are numbers and policies, and each release adds some. What is
# dangerous is named here: keys whose value is a program, code, a file of a daemon or a source of trust.
REFUSED: dict[str, Danger] = {
    **dict.fromkeys(
        (
            "BurstBufferType",
            "CertgenParameters",
            "CertgenType",
            "CertmgrParameters",
            "CertmgrType",
            "Epilog",
            "EpilogSlurmctld",
            "HealthCheckProgram",
            "JobCompLoc",
            "JobCompPassScript",
            "JobCompType",
            "MailProg",
            "NodeFeaturesPlugins",
            "PrEpParameters",
            "PrEpPlugins",
            "Prolog",
            "PrologSlurmctld",
            "RebootProgram",
            "ResvEpilog",
            "ResvProlog",
            "SlurmctldPrimaryOffProg",
            "SlurmctldPrimaryOnProg",
            "SrunEpilog",
            "SrunProlog",
            "TaskEpilog",
            "UnkillableStepProgram",
        ),
        "runs a program",
    ),
    **dict.fromkeys(("CliFilterPlugins", "JobSubmitPlugins", "PlugStackConfig", "PluginDir"), "loads code"),
    **dict.fromkeys(("SlurmSchedLogFile", "SlurmctldPidFile", "SlurmdPidFile"), "names a file that a daemon writes"),
    **dict.fromkeys(
        (
            "AccountingStorageBackupHost",
            "AccountingStorageExternalHost",
            "AccountingStoragePass",
            "AuthAltParameters",
            "AuthAltTypes",
            "BackupAddr",
            "BackupController",
            "ControlAddr",
            "ControlMachine",
            "CryptoType",
            "JobCredentialPrivateKey",
            "JobCredentialPublicCertificate",
            "MetricsAuthUsers",
            "SlurmctldAddr",
            "SlurmctldHttpAuthParameters",
            "SlurmdHttpAuthParameters",
            "TLSParameters",
            "TLSType",
        ),
        "changes who is trusted",
    ),
}
# Slurm names the keys of programs like this; later releases may add some.
_PROGRAM = re.compile(r"(prog|program|prolog|epilog|script)$", re.IGNORECASE)
_REFUSED_BY_LOWER = {key.lower(): danger for key, danger in REFUSED.items()}


def describe_danger(key: str) -> Danger | None:
    """Return why slurm.extra may not set a key, in any case, or None if it may."""
    return _REFUSED_BY_LOWER.get(key.lower()) or ("runs a program" if _PROGRAM.search(key) else None)
