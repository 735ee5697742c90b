"""Every key our slurm.conf writes is either ours alone or open to slurm.extra: a new one has to be decided."""

from __future__ import annotations

import re
from pathlib import Path

from cluster.spec.fields import walk
from infra.targets.registry import spec_model
from infra.validate.managed_keys import MANAGED

TEMPLATE = Path(__file__).parents[2] / "slurm" / "config" / "templates" / "slurm.conf.j2"
OPEN = {
    "BatchStartTimeout",
    "HealthCheckInterval",
    "HealthCheckNodeState",
    "HealthCheckProgram",
    "JobAcctGatherFrequency",
    "JobRequeue",
    "MailProg",
    "MessageTimeout",
    "MpiDefault",
    "Prolog",
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


def test_written_keys_are_managed_or_open() -> None:
    written = set(re.findall(r"^([A-Z]\w+)=", TEMPLATE.read_text(), flags=re.MULTILINE))
    assert written - set(MANAGED) == OPEN


def test_fields_that_stand_for_a_key_exist() -> None:
    assert {field for field in MANAGED.values() if field} <= {path for path, _ in walk(spec_model())}
