"""Whole runs with the real wandb where its server cannot be reached: the run says so once, goes on and records offline.

The server accepts connections and never answers, as behind a firewall that drops what is sent.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from wandb.proto.wandb_internal_pb2 import Record

from tests.trainer.launch import (
    SMALL_LLAMA,
    Launched,
    alone,
    assert_finished,
    forked,
    losses,
    outcome,
    wait_for_step,
    wait_until_gone,
)
from trainer.life.outcome import Code

QUICK = "tests.trainer.quick_tracker_rank"
ONLINE = [*SMALL_LLAMA, "run.folder=run", "metrics.wandb=online", "checkpoint.every=never"]
STEPS = 20
SETTING = "metrics.wandb: "
NO_NETWORK = "cannot reach Weights & Biases (CommError: "
NOT_SENT = "metrics/ in the run folder has all of it; without a network, set metrics.wandb to offline"


@pytest.fixture
def server() -> Iterator[str]:
    """Yield the address of a server that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_run_without_a_key_records_offline(tmp_path: Path, server: str) -> None:
    place = make_place(tmp_path, server, key="", INIT_S="30", CLOSE_S="240")
    with alone([*ONLINE, f"steps={STEPS}"], tmp_path, program=QUICK, **place) as run:
        assert_finished(run)
    message = "cannot reach Weights & Biases (UsageError: No API key configured. Use `wandb login` to log in.); "
    assert_message(run, message + describe_offline(tmp_path))
    assert outcome(tmp_path / "run")["outcome"] == "finished"
    assert recorded_losses(tmp_path) == losses(tmp_path / "run")
    assert len(losses(tmp_path / "run")) == STEPS


@pytest.mark.nightly
def test_ranks_without_a_network_train_on_and_record_offline(tmp_path: Path, server: str) -> None:
    place = make_place(tmp_path, server, INIT_S="3", CLOSE_S="240", OPENED=str(tmp_path / "opened"))
    settings = [*ONLINE, "steps=1000000", "parallel.strategy=ddp", "metrics.every=10"]
    with forked(2, settings, tmp_path, program=QUICK, **place) as run:
        wait_for_step(run, tmp_path / "run", 10)
        assert SETTING not in run.output
        (tmp_path / "opened").touch()
        run.until(lambda: SETTING in run.output, "message of the tracker")
        wait_for_step(run, tmp_path / "run", max(losses(tmp_path / "run")) + 50)
        processes = run.pids()
        (tmp_path / "run" / "stop").touch()
        assert run.wait() == Code.STOPPED, run.output
    assert_message(run, NO_NETWORK)
    assert_message(run, describe_offline(tmp_path))
    ended = outcome(tmp_path / "run")
    assert (ended["outcome"], ended["failure"]) == ("stopped", None)
    assert recorded_losses(tmp_path) == losses(tmp_path / "run")
    wait_until_gone(processes)


@pytest.mark.parametrize(
    ("program", "variables"),
    [
        pytest.param(QUICK, {"INIT_S": "600", "CLOSE_S": "1"}, id="1 s"),
        pytest.param("trainer", {}, id="15 s", marks=pytest.mark.nightly),
    ],
)
def test_a_run_that_ends_before_wandb_gives_up_says_what_is_missing(
    tmp_path: Path, server: str, program: str, variables: dict[str, str]
) -> None:
    place = make_place(tmp_path, server, **variables)
    with alone([*ONLINE, f"steps={STEPS}"], tmp_path, program=program, **place) as run:
        assert_finished(run)
    assert_message(run, f"not everything was sent within {variables.get('CLOSE_S', '15')} s; {NOT_SENT}")
    assert outcome(tmp_path / "run")["outcome"] == "finished"
    assert len(losses(tmp_path / "run")) == STEPS


@pytest.mark.nightly
def test_wandb_gives_up_while_a_long_run_trains(tmp_path: Path, server: str) -> None:
    """With the usual limit, which is half a minute."""
    with alone([*ONLINE, "steps=1000000", "metrics.every=100"], tmp_path, **make_place(tmp_path, server)) as run:
        wait_for_step(run, tmp_path / "run", 100)
        run.until(lambda: SETTING in run.output, "message of the tracker")
        (tmp_path / "run" / "stop").touch()
        assert run.wait() == Code.STOPPED, run.output
    assert_message(run, NO_NETWORK)
    assert outcome(tmp_path / "run")["outcome"] == "stopped"
    assert recorded_losses(tmp_path) == losses(tmp_path / "run")


def make_place(folder: Path, server: str, key: str = "0123456789" * 4, **variables: str) -> dict[str, str]:
    """Return the variables of a run: a home without credentials, and a server that cannot be reached."""
    place = {"WANDB_API_KEY": key, "WANDB_BASE_URL": server, "WANDB_MODE": "online", "WANDB_ERROR_REPORTING": "false"}
    # A proxy of this machine would answer for the server. An empty variable counts as none.
    proxies = {name: "" for scheme in ("http_proxy", "https_proxy", "all_proxy") for name in (scheme, scheme.upper())}
    return {"HOME": str(folder), **place, **proxies, **variables}


def describe_offline(folder: Path) -> str:
    files = folder / "run" / "wandb"
    return f"recording in {files}; upload with `wandb sync {files}/offline-run-*`"


def assert_message(run: Launched, text: str) -> None:
    """Assert that the run says this about its tracker, and nothing else."""
    (message,) = (line for line in run.output.splitlines() if line.startswith(SETTING))
    assert text in message, run.output


def recorded_losses(folder: Path) -> dict[int, float]:
    """Return the losses in the file that `wandb sync` uploads."""
    (file,) = (folder / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    rows = []
    for content in read_log(file.read_bytes()):
        record = Record.FromString(content)
        if record.HasField("history"):
            items = record.history.item
            rows.append({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items})
    return {int(row["step"]): row["loss"] for row in rows}


def read_log(content: bytes) -> list[bytes]:
    """Return the records of a file in LevelDB's log format, in which parts of records do not cross blocks."""
    block_bytes, head_bytes, whole_or_last = 32768, 7, (1, 4)
    records, parts, at = [], b"", head_bytes
    while at + head_bytes <= len(content):
        left_bytes = block_bytes - at % block_bytes
        if left_bytes < head_bytes:
            at += left_bytes
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        parts += content[at + head_bytes :][:length]
        at += head_bytes + length
        if kind in whole_or_last:
            records.append(parts)
            parts = b""
    return records
