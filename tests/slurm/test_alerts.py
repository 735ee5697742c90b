"""Alerts: what is reported and how often, and that messages reach a real web server, with retries and limits."""

from __future__ import annotations

import errno
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from slurm.alerts import install, outbox, webhook
from slurm.alerts.__main__ import Settings, describe_spent, read_view, watch_once
from slurm.alerts.conditions import (
    DRAIN_GRACE_S,
    LOST_GRACE_S,
    REPEAT_S,
    SILENT_GRACE_S,
    Condition,
    View,
    list_conditions,
    select_new,
)
from slurm.alerts.outbox import FIRST_RETRY_S, INTERVAL_S, MAX_LINES, MAX_RETRY_S, MAX_WAITING, Outbox
from slurm.control.jobs import WaitingJob, parse_waiting
from slurm.control.nodes import NodeState, parse_nodes
from slurm.health.drain import CAP_PREFIX, USER_PREFIX
from slurm.health.remedy import REBOOT_S
from tests.slurm.webhook_receiver import receive

STUCK_S = 1800.0
IDLE = NodeState("IDLE", partitions=("gpu",))
BUSY = NodeState("ALLOCATED", partitions=("gpu",))
DRAINED = frozenset({"DRAIN"})
JOB = WaitingJob("7", "gpu", "Resources")


@pytest.mark.parametrize(
    ("node", "texts"),
    [
        (IDLE, []),
        (NodeState("IDLE", DRAINED, "health: gpu: broken", "root"), ["n is drained: health: gpu: broken"]),
        (NodeState("IDLE", DRAINED, "Prolog error", "root"), ["n is drained: Prolog error"]),
        (NodeState("IDLE", DRAINED, "Kill task failed", "slurm"), ["n is drained: Kill task failed"]),
        (NodeState("IDLE", DRAINED, "new memory", "alice"), []),
        (NodeState("IDLE", DRAINED, "muster: leaving", "root"), []),
        (NodeState("DOWN", frozenset({"NOT_RESPONDING"}), "Not responding", "slurm"), ["n is lost: Not responding"]),
        (NodeState("IDLE", frozenset({"NOT_RESPONDING"})), ["n is lost: it does not answer"]),
        (NodeState("DOWN", frozenset({"CLOUD"}), "muster: its machine"), ["n is lost: muster: its machine"]),
        (NodeState("DOWN", frozenset({"CLOUD"}), "muster: capacity: none in a"), []),
        (NodeState("IDLE", frozenset({"CLOUD", "POWERED_DOWN", "NOT_RESPONDING"})), []),
        (NodeState("IDLE", frozenset({"CLOUD", "POWERING_UP", "NOT_RESPONDING"})), []),
        (replace(IDLE, comment=f"{CAP_PREFIX}mounts: gone"),
         ["n has a problem and stays in service, because enough of its group are drained: mounts: gone"]),
        (replace(IDLE, comment=f"{USER_PREFIX}job-disk: full"), [f"n: {USER_PREFIX}job-disk: full"]),
        (replace(IDLE, comment="rack 7"), []),
    ],
)  # fmt: skip
def test_conditions_of_a_node(node: NodeState, texts: list[str]) -> None:
    assert [condition.text for condition in list_conditions(View({"n": node}), STUCK_S)] == texts


@pytest.mark.parametrize(
    ("nodes", "job", "stuck"),
    [
        ([IDLE], JOB, True),
        ([BUSY, IDLE], JOB, False),
        ([IDLE], replace(JOB, reason="Dependency"), False),
        ([IDLE], replace(JOB, reason="JobHeldUser"), False),
        ([IDLE], replace(JOB, reason="ReqNodeNotAvail, UnavailableNodes:gpu-1"), True),
        ([IDLE], replace(JOB, reason="Nodes required for job are DOWN, DRAINED or reserved"), True),
        ([BUSY], replace(JOB, partition="cpu"), True),
        ([BUSY], replace(JOB, partition="cpu,gpu"), False),
        ([replace(IDLE, flags=frozenset({"COMPLETING"}))], JOB, False),
    ],
)
def test_a_queue_is_stuck_if_jobs_wait_for_nodes_while_nothing_runs(
    nodes: list[NodeState], job: WaitingJob, stuck: bool
) -> None:
    view = View({f"gpu-{number}": node for number, node in enumerate(nodes)}, [job])
    conditions = list_conditions(view, STUCK_S)
    assert [condition.grace_s for condition in conditions] == ([STUCK_S] if stuck else [])
    if stuck:
        assert f"is stuck: 1 job waits while nothing runs, 7 for {job.reason}" in conditions[0].text
        (both,) = list_conditions(replace(view, waiting=[job, job]), STUCK_S)
        assert "is stuck: 2 jobs wait while nothing runs, 7 for " in both.text


def test_slurmctld_slurmdbd_and_the_budget() -> None:
    (silent,) = list_conditions(View(keeps_records=False), STUCK_S)
    assert silent.text.startswith("slurmdbd or its database does not answer: ")
    assert silent.grace_s == SILENT_GRACE_S
    assert [c.text for c in list_conditions(View(answers=False), STUCK_S)] == ["slurmctld does not answer"]
    assert list_conditions(View(answers=False), STUCK_S)[0].grace_s == SILENT_GRACE_S
    spent = [c.text for c in list_conditions(View(spent="12 of 10 USD this month"), STUCK_S)]
    assert spent == ["the budget is spent: 12 of 10 USD this month"]


@pytest.mark.parametrize(
    ("saved", "text"),
    [
        ('{"at": 1, "spent": 5200.4, "limit": 5000}', "5,200 of 5,000 USD this month"),
        ('{"at": 1, "spent": 4999, "limit": 5000}', ""),
        ('{"at": 1}', ""),
        ("broken", ""),
    ],
)
def test_the_spent_budget_is_read_from_the_sweep_s_record(tmp_path: Path, saved: str, text: str) -> None:
    path = tmp_path / "ceiling.json"
    assert describe_spent(path) == ""
    path.write_text(saved)
    assert describe_spent(path) == text


def test_a_condition_is_reported_once_it_has_lasted_and_not_again() -> None:
    drain = Condition("drain a", "a is drained", DRAIN_GRACE_S)
    new, history = select_new([drain], {}, 100.0)
    assert new == []
    new, history = select_new([drain], history, 100.0 + DRAIN_GRACE_S)
    assert new == [drain]
    for later in (200.0, 300.0, 10_000.0):
        new, history = select_new([drain], history | {"drain a": history["drain a"] | {"seen": later - 1}}, later)
        assert new == []


def test_a_condition_that_comes_and_goes_is_not_repeated_for_a_while() -> None:
    lost = Condition("lost a", "a is lost")
    assert select_new([lost], {}, 0.0)[0] == [lost]
    history = select_new([lost], {}, 0.0)[1]
    _, history = select_new([], history, 60.0)
    assert select_new([lost], history, 120.0)[0] == []
    _, forgotten = select_new([], history, REPEAT_S + 1)
    assert forgotten == {}
    assert select_new([lost], forgotten, REPEAT_S + 2)[0] == [lost]


def test_a_short_condition_is_forgotten() -> None:
    drain = Condition("drain a", "a is drained", DRAIN_GRACE_S)
    _, history = select_new([drain], {}, 0.0)
    _, history = select_new([], history, 5.0)
    assert select_new([drain], history, DRAIN_GRACE_S + 1)[0] == []


def test_the_outbox_is_bounded_and_counts_what_it_drops() -> None:
    full = outbox.add(Outbox(), [f"alert {number}" for number in range(MAX_WAITING + 30)])
    assert (len(full.waiting), full.dropped, full.waiting[-1]) == (MAX_WAITING, 30, f"alert {MAX_WAITING + 29}")
    text = outbox.compose(full, "demo")
    assert text.splitlines()[0] == "muster cluster demo:"
    assert text.splitlines()[-1] == "(30 older alerts were dropped)"
    assert len(text.splitlines()) == MAX_LINES + 2
    assert outbox.after_success(full, 0.0).waiting == full.waiting[MAX_LINES:]


def test_messages_have_a_rate_and_retries_a_growing_pause() -> None:
    waiting = outbox.add(Outbox(), ["a"])
    assert not Outbox().is_due(0.0)
    assert waiting.is_due(0.0)
    sent = outbox.add(outbox.after_success(waiting, 100.0), ["b"])
    assert [sent.is_due(100.0 + INTERVAL_S - 1), sent.is_due(100.0 + INTERVAL_S)] == [False, True]
    pauses, failing = [], waiting
    for _ in range(12):
        failing = outbox.after_failure(failing, 0.0)
        pauses.append(failing.next_at)
    assert pauses[:3] == [FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S]
    assert pauses[-1] == MAX_RETRY_S
    assert outbox.after_failure(waiting, 0.0, retry_after_s=60.0).next_at == 60.0
    assert outbox.after_failure(waiting, 0.0, retry_after_s=1e9).next_at == MAX_RETRY_S
    # The clock was set back by a day.
    assert replace(waiting, next_at=86_400.0).is_due(0.0)


def watch(folder: Path, url: str, view: View, now: float) -> None:
    watch_once(Settings(url, "demo", STUCK_S), folder, lambda: view, now)


def test_a_clean_start_sends_nothing(tmp_path: Path) -> None:
    """Nodes are unknown until they register, and slurmctld takes a while to reach all of them."""
    silent = frozenset({"NOT_RESPONDING"})
    start = [(0.0, NodeState("UNKNOWN", silent)), (300.0, NodeState("UNKNOWN", silent)),
             (315.0, NodeState("IDLE", silent, version="26.05.1")),
             (315.0 + LOST_GRACE_S - 1, NodeState("IDLE", silent, version="26.05.1"))]  # fmt: skip
    with receive() as (url, receiver):
        for now, node in start:
            watch(tmp_path, url, View({"gpu-1": node}), now)
        watch(tmp_path, url, View({"gpu-1": IDLE}), 315.0 + LOST_GRACE_S)
        assert receiver.paths == []
        # A node that had registered and stays silent is lost, also if slurmctld has restarted.
        for now in (400.0, 400.0 + LOST_GRACE_S):
            watch(tmp_path, url, View({"gpu-1": NodeState("UNKNOWN", silent, version="26.05.1")}), now)
    assert receiver.texts == ["muster cluster demo:\n• gpu-1 is lost: it does not answer"]


@pytest.mark.parametrize(
    ("reason", "grace_s"),
    [
        ("health: gpu: exit code 9", REBOOT_S),
        ("health: dcgm-3: memory failed on GPU 1", REBOOT_S),
        ("health: after reset and reboot: gpu: exit code 9", LOST_GRACE_S),
        ("health: mounts: /shared is not mounted", LOST_GRACE_S),
        ("new memory", LOST_GRACE_S),
    ],
)
def test_a_node_that_a_remedy_reboots_is_lost_only_if_it_does_not_return(reason: str, grace_s: float) -> None:
    node = NodeState("IDLE", frozenset({"DRAIN", "NOT_RESPONDING"}), reason, "root")
    (condition,) = list_conditions(View({"n": node}), STUCK_S)
    assert (condition.key, condition.grace_s) == ("lost n", grace_s)


def test_a_message_reaches_the_server_after_failures_and_alerts_are_not_lost_meanwhile(tmp_path: Path) -> None:
    two = View({f"gpu-{number}": NodeState("DOWN", reason="Not responding", by="slurm") for number in (1, 2)})
    with receive([500, 429]) as (url, receiver):
        watch(tmp_path, url, two, -LOST_GRACE_S)
        watch(tmp_path, url, two, 0.0)
        watch(tmp_path, url, two, 1.0)
        assert (len(receiver.paths), receiver.texts) == (1, [])
        watch(tmp_path, url, two, FIRST_RETRY_S)
        # The server asked for 7 s, less than the pause.
        watch(tmp_path, url, two, FIRST_RETRY_S + 9.0)
        assert len(receiver.paths) == 2
        watch(tmp_path, url, two, FIRST_RETRY_S + 10.0)
        watch(tmp_path, url, two, 1000.0)
    assert receiver.texts == [
        "muster cluster demo:\n• gpu-1 is lost: Not responding\n• gpu-2 is lost: Not responding",
    ]
    assert set(receiver.paths) == {"/services/T0/secret-part"}


def test_a_message_that_the_server_refuses_is_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with receive([404]) as (url, receiver):
        watch(tmp_path, url, View({"gpu-1": NodeState("DOWN", reason="gone")}), -LOST_GRACE_S)
        watch(tmp_path, url, View({"gpu-1": NodeState("DOWN", reason="gone")}), 0.0)
        watch(tmp_path, url, View({"gpu-1": NodeState("DOWN", reason="gone")}), 1000.0)
    assert (len(receiver.paths), receiver.texts) == (1, [])
    assert capsys.readouterr().err == "the webhook answered 404; 1 alerts were not sent\n"


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:9/secret-part", "http://unknown.invalid/secret-part", "secret-part", "http://[secret-part"],
)
def test_no_error_shows_the_address(tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str) -> None:
    for now in (-LOST_GRACE_S, 0.0):
        watch(tmp_path, url, View({"gpu-1": NodeState("DOWN", reason="gone")}), now)
    shown = capsys.readouterr()
    assert "the webhook" in shown.err
    assert "secret-part" not in shown.out + shown.err
    assert "secret-part" not in (tmp_path / "state.json").read_text()


def test_other_programs_hand_alerts_over(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    text = "the gate of gpu failed: gpu-1: job: can't start; $(touch x) `y`"
    script = install.hand_over(text).replace(install.STATE, str(tmp_path))
    subprocess.run(["sh", "-ec", script], check=True, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
    spool.mkdir()
    for _ in range(install.MAX_SPOOLED + 5):
        subprocess.run(["sh", "-ec", script], check=True, cwd=tmp_path)
    assert len(list(spool.iterdir())) == install.MAX_SPOOLED
    with receive() as (url, receiver):
        watch(tmp_path, url, View(), 0.0)
    assert receiver.texts[0].splitlines()[:2] == ["muster cluster demo:", f"• {text}"]
    assert list(spool.iterdir()) == []


def test_an_alert_of_another_program_is_removed_only_once_it_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "a").write_text("the gate failed")
    (tmp_path / "secret").write_text("not an alert")
    (spool / "link").symlink_to(tmp_path / "secret")
    (spool / "folder").mkdir()
    os.mkfifo(spool / "pipe")

    def stop(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("slurm.alerts.__main__._save", stop)
        with pytest.raises(OSError, match="No space"):
            watch(tmp_path, "http://127.0.0.1:9/", View(), 0.0)
    assert (spool / "a").exists()
    with receive() as (url, receiver):
        watch(tmp_path, url, View(), 0.0)
    assert receiver.texts == ["muster cluster demo:\n• the gate failed"]
    assert sorted(path.name for path in spool.iterdir()) == ["folder", "link", "pipe"]


def test_commands_of_slurm_are_parsed() -> None:
    line = "NodeName=a State=IDLE Partitions=gpu,debug Reason=x [root@2026-11-15] Comment=health: not drained, b"
    node = parse_nodes(f"{line}\n")["a"]
    assert (node.partitions, node.comment, node.reason) == (("gpu", "debug"), "health: not drained, b", "x")
    assert parse_waiting("7|gpu|Resources\n8|a,b|ReqNodeNotAvail, May be reserved\nslurm: x\n") == (
        JOB,
        WaitingJob("8", "a,b", "ReqNodeNotAvail, May be reserved"),
    )


@pytest.mark.parametrize(
    ("codes", "answers", "keeps_records"),
    [
        ({"scontrol": 0, "squeue": 0, "sacctmgr": 0}, True, True),
        ({"scontrol": 0, "squeue": 0, "sacctmgr": 1}, True, False),
        ({"scontrol": 0, "squeue": 0}, True, False),
        ({"scontrol": 1, "squeue": 0, "sacctmgr": 0}, False, True),
    ],
)
def test_the_daemons_answer_if_the_commands_of_slurm_do(
    codes: dict[str, int], answers: bool, keeps_records: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, code in codes.items():
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    view = read_view()
    assert (view.answers, view.keeps_records) == (answers, keeps_records)


def test_the_unit_gives_no_secret_to_the_command_line() -> None:
    assert "http" not in install.UNIT
    assert webhook.TIMEOUT_S < INTERVAL_S
