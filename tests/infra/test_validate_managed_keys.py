"""Every key in muster's slurm.conf is either managed or allowed in slurm.extra; a new key must be put in one list."""

from __future__ import annotations

import re
from pathlib import Path

from cluster.spec.fields import walk
from infra.targets.registry import spec_model
from infra.validate.managed_keys import MANAGED

TEMPLATE = Path(__file__).parents[2] / "slurm" / "config" / "templates" / "slurm.conf.j2"
ALLOWED_IN_EXTRA = {
    "BatchStartTimeout",
    "HealthCheckInterval",
    "HealthCheckNodeState",
    "HealthCheckProgram",
    "HealthCheckTimeout",
    "JobAcctGatherFrequency",
    "JobRequeue",
    "MailProg",
    "MessageTimeout",
    "MpiDefault",
    "Prolog",
    "PrologSlurmctld",
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


def test_written_keys_are_managed_or_allowed() -> None:
    written = set(re.findall(r"^([A-Z]\w+)=", TEMPLATE.read_text(), flags=re.MULTILINE))
    assert written - set(MANAGED) == ALLOWED_IN_EXTRA


def test_spec_fields_of_managed_keys_exist() -> None:
    assert {field for field in MANAGED.values() if field} <= {path for path, _ in walk(spec_model())}
