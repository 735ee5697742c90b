"""Every key in muster's slurm.conf is managed, refused or allowed in slurm.extra; a new key must be put in one list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster.spec import ClusterSpec
from cluster.spec.fields import walk
from infra.targets.registry import spec_model
from infra.validate.managed_keys import MANAGED, REFUSED
from infra.validate.slurm_options import check_extra_keys

TEMPLATE = Path(__file__).parents[2] / "slurm" / "config" / "templates" / "slurm.conf.j2"
ALLOWED_IN_EXTRA = {
    "BatchStartTimeout",
    "HealthCheckInterval",
    "HealthCheckNodeState",
    "HealthCheckTimeout",
    "JobAcctGatherFrequency",
    "JobRequeue",
    "MaxJobCount",
    "MessageTimeout",
    "MpiDefault",
    "PrivateData",
    "PropagateResourceLimitsExcept",
    "ReconfigFlags",
    "ResumeRate",
    "ReturnToService",
    "SchedulerParameters",
    "SlurmctldTimeout",
    "SuspendRate",
    "SuspendTimeout",
    "TreeWidth",
    "UnkillableStepTimeout",
}
# Keys of slurm.conf(5) in Slurm 24.11 and 26.05, and former names that they still read. Written out here, so that a key
# missing from REFUSED is noticed.
RUN_PROGRAMS = [
    "Epilog",
    "EpilogSlurmctld",
    "HealthCheckProgram",
    "JobCompLoc",
    "JobCompPassScript",
    "MailProg",
    "Prolog",
    "PrologSlurmctld",
    "RebootProgram",
    "ResumeFailProgram",
    "ResumeProgram",
    "ResvEpilog",
    "ResvProlog",
    "SlurmctldPrimaryOffProg",
    "SlurmctldPrimaryOnProg",
    "SrunEpilog",
    "SrunProlog",
    "SuspendProgram",
    "TaskEpilog",
    "TaskProlog",
    "UnkillableStepProgram",
]
CHANGE_TRUST = [
    "AccountingStorageBackupHost",
    "AccountingStorageExternalHost",
    "AccountingStorageHost",
    "AccountingStoragePass",
    "AuthAltParameters",
    "AuthAltTypes",
    "AuthInfo",
    "AuthType",
    "BackupAddr",
    "BackupController",
    "ControlAddr",
    "ControlMachine",
    "CredType",
    "CryptoType",
    "DisableRootJobs",
    "JobCredentialPrivateKey",
    "JobCredentialPublicCertificate",
    "MetricsAuthUsers",
    "SlurmUser",
    "SlurmctldAddr",
    "SlurmctldHost",
    "SlurmctldHttpAuthParameters",
    "SlurmdHttpAuthParameters",
    "SlurmdUser",
    "TLSParameters",
    "TLSType",
]
# Slurm has none of these today.
LATER_PROGRAMS = ("StepProlog", "stepepilog", "NodeLossProgram", "DrainProg", "AccountingStoragePassScript")


def test_written_keys_are_managed_refused_or_allowed() -> None:
    written = set(re.findall(r"^([A-Z]\w+)=", TEMPLATE.read_text(), flags=re.MULTILINE))
    assert written - set(MANAGED) - set(REFUSED) == ALLOWED_IN_EXTRA


def test_spec_fields_of_managed_keys_exist() -> None:
    assert {field for field in MANAGED.values() if field} <= {path for path, _ in walk(spec_model())}


@pytest.mark.attack(8)
@pytest.mark.parametrize("key", [*REFUSED, "prolog", "PLUGINDIR"])
def test_whoever_edits_a_stack_gets_no_program_run_as_root(key: str) -> None:
    (issue,) = check_extra_keys(_with_extra(key))
    assert (issue.code, issue.level) == ("extra_refused", "error")
    assert "/shared/home/eve/root.sh" in issue.message


@pytest.mark.attack(8)
@pytest.mark.parametrize("key", [*RUN_PROGRAMS, *CHANGE_TRUST, *LATER_PROGRAMS])
def test_no_key_of_slurm_that_runs_a_program_or_changes_trust_is_accepted(key: str) -> None:
    for spelling in (key, key.lower()):
        (issue,) = check_extra_keys(_with_extra(spelling))
        assert issue.code in ("extra_refused", "extra_managed")


@pytest.mark.parametrize("key", ["PrologTimeout", "PrologEpilogTimeout", "EpilogMsgTime", "MaxArraySize"])
def test_keys_of_numbers_are_accepted(key: str) -> None:
    assert list(check_extra_keys(_with_extra(key))) == []


def test_no_key_is_in_two_lists() -> None:
    assert not set(MANAGED) & set(REFUSED)


# slurm.conf(5) names all of these as paths of programs, or of code that a daemon loads.
@pytest.mark.attack(8)
@pytest.mark.parametrize("pattern", ["prog", "prolog", "epilog", "plugstack", "plugindir"])
def test_keys_of_programs_that_muster_writes_are_out_of_reach(pattern: str) -> None:
    written = set(re.findall(r"^([A-Z]\w+)=", TEMPLATE.read_text(), flags=re.MULTILINE))
    assert {key for key in written if pattern in key.lower()} <= {*MANAGED, *REFUSED}


def _with_extra(key: str) -> ClusterSpec:
    extra = {"extra": {key: "/shared/home/eve/root.sh"}}
    return ClusterSpec.model_validate({"name": "toy", "target": "local", "groups": {"gpu": {}}, "slurm": extra})
