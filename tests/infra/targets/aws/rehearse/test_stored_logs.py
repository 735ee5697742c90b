"""Logs of a machine that is gone: which lines must be there, and that a rehearsal fails without them."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from infra.engine.stop import Stop
from infra.targets.aws.node import parameters
from infra.targets.aws.rehearse import stored_logs
from infra.targets.aws.rehearse.stored_logs import SLURMD_TITLE, check_stored_logs, wait_for_stored_logs

MACHINE = SimpleNamespace(name="gpu-1", id="i-1")
LOG = f"machine i-1, stored 2026-11-17 10:00:00 UTC\nmuster: gpu-1 is ready\n{SLURMD_TITLE}\nslurmd started\n"


def make_rehearsal(text: str = LOG, keys: tuple[str, ...] = ()) -> MagicMock:
    rehearsal = MagicMock()
    rehearsal.read_logs.return_value = text
    rehearsal.rehearsed.spec.name, rehearsal.cloud.account, rehearsal.cloud.moto_account.region = "pair", "1", "us-1"
    answer = {"Contents": [{"Key": key} for key in keys]} if keys else {}
    rehearsal.cloud.client.return_value.list_objects_v2.return_value = answer
    return rehearsal


def test_the_logs_of_the_dead_machine_are_read() -> None:
    rehearsal = make_rehearsal()
    check_stored_logs(rehearsal, MACHINE)
    rehearsal.read_logs.assert_called_once_with("gpu-1", "i-1")
    rehearsal.console.say.assert_called_once_with("`muster logs` printed 4 lines of gpu-1 (i-1), which is gone")


@pytest.mark.parametrize("line", ["muster: gpu-1 is ready", SLURMD_TITLE])
def test_a_log_without_set_up_or_slurmd_is_an_error(line: str) -> None:
    with pytest.raises(Stop, match=r"the stored logs of gpu-1 \(i-1\) have no line"):
        check_stored_logs(make_rehearsal(LOG.replace(line, "")), MACHINE)


def test_only_logs_of_this_machine_end_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = (parameters.stored("gpu-1", f"arn:aws:ec2:us-1:1:instance/{id_}") for id_ in ("i-1", "i-0"))
    wait_for_stored_logs(make_rehearsal(keys=(own,)), MACHINE)
    monkeypatch.setattr(stored_logs, "FIRST_STORED_S", 0.0)
    monkeypatch.setattr(stored_logs, "_STORING_S", 0.0)
    with pytest.raises(Stop, match="gpu-1 has not stored its logs after 0 s"):
        wait_for_stored_logs(make_rehearsal(keys=(other,)), MACHINE)
