"""The check of shared filesystems: the script on a real one, and the verdict on what nodes have seen."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from bootstrap import storage_verdict
from bootstrap.errors import BootstrapError
from bootstrap.progress import Event
from bootstrap.sessions import Sessions
from bootstrap.storage_check import check_storage, render_check
from bootstrap.storage_verdict import (
    MIN_TOTAL_MBPS,
    SIZE_MB,
    Answer,
    judge_watched,
    judge_written,
    parse_answer,
)
from bootstrap.transport.base import DEFAULT_TIMEOUT_S, Completed, LostConnectionError, OnLine, TransportError
from bootstrap.transport.local import LocalTransport
from cluster.inventory import Adopted, Node
from tests.bootstrap.clusters import desired, node

MOUNT = "/shared"
NODES = (node("controller", "controller", 10), node("gpu-1", "compute", 21), node("gpu-2", "compute", 22))
NAMES = tuple(each.name for each in NODES)
WRITTEN = """source\tnas:/export (nfs4)
clock\t100.0\t100.1\t100.2
wrote\t100.0\t100.5
owner\t1
written\tgpu-1
"""
WATCHED = "renames\t0\t0\nwatched\tgpu-1\n"


def change(text: str, name: str, *values: str) -> Answer:
    """Return an answer with other values of one fact."""
    answer = parse_answer(text)
    return replace(answer, facts={**answer.facts, name: (values,)})


def written(answer: Answer) -> list[tuple[str, str]]:
    """Return node and message of what is wrong if one node of three has given this answer."""
    answers = dict.fromkeys(NAMES, parse_answer(WRITTEN)) | {"gpu-1": answer}
    return [(fault.node, fault.line) for fault in judge_written(MOUNT, answers)]


def watched(answer: Answer) -> list[tuple[str, str]]:
    answers = dict.fromkeys(NAMES, parse_answer(WATCHED)) | {"gpu-1": answer}
    sources = dict.fromkeys(NAMES, parse_answer(WRITTEN)) | {"gpu-1": change(WRITTEN, "source", "/dev/sda1 (ext4)")}
    return [(fault.node, fault.line) for fault in judge_watched(MOUNT, sources, answers)]


def test_a_filesystem_as_it_should_be() -> None:
    assert written(parse_answer(WRITTEN)) == []
    assert watched(parse_answer(WATCHED)) == []


def test_an_error_of_the_filesystem_is_named() -> None:
    answer = parse_answer("source\tnas:/export (nfs4)\nerror\tcreate a folder\tmkdir: Permission denied\n")
    assert written(answer) == [
        ("gpu-1", "/shared (nas:/export (nfs4)): cannot create a folder: mkdir: Permission denied")
    ]
    assert written(parse_answer("")) == [("gpu-1", "/shared: the check ended early")]


def test_an_export_that_translates_users_is_refused() -> None:
    what = "/shared (nas:/export (nfs4)): a file given to user 1 belongs to user 65534"
    assert written(change(WRITTEN, "owner", "65534")) == [("gpu-1", what)]


@pytest.mark.parametrize(
    ("stamped", "words"),
    [
        ("96.5", "the server's clock is 3.5 s behind this node's"),
        ("103.2", "the server's clock is 3.0 s ahead of this node's"),
        ("100.19", ""),
        ("99.01", ""),
    ],
)
def test_the_clock_of_the_server_is_compared_with_that_of_each_node(stamped: str, words: str) -> None:
    faults = written(change(WRITTEN, "clock", "100.0", stamped, "100.2"))
    assert len(faults) == bool(words)
    assert all(name == "gpu-1" and words in line for name, line in faults)


def test_a_slow_filesystem_is_refused_and_the_slowest_node_named() -> None:
    seconds = 3 * SIZE_MB / MIN_TOTAL_MBPS
    assert written(change(WRITTEN, "wrote", "100.0", f"{100 + seconds * 0.99}")) == []
    ((name, line),) = written(change(WRITTEN, "wrote", "100.0", f"{100 + seconds * 2}"))
    assert name == "gpu-1"
    assert "2.5 MB/s written with fsync by all nodes together; allowed: 5 MB/s or more" in line


def test_another_filesystem_is_named_with_both_sources() -> None:
    answer = parse_answer("unseen\tcontroller\nunseen\tgpu-2\nold\tuniq: pointer: No such file\nwatched\tgpu-1\n")
    ((name, line),) = watched(answer)
    assert name == "gpu-1"
    assert "/shared from /dev/sda1 (ext4) does not show within 15 s what controller, gpu-2 wrote" in line
    assert line.endswith("to /shared from nas:/export (nfs4)")


def test_renames_that_are_not_atomic_are_refused() -> None:
    ((_, line),) = watched(change(WATCHED, "renames", "2", "31"))
    assert "it was missing 31 times and incomplete 2 times" in line
    ((_, line),) = watched(parse_answer("old\t4096 17\nrenames\t0\t0\nwatched\tgpu-1\n"))
    assert "is still the old one after 15 s" in line


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")
def test_the_script_on_a_real_filesystem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The disk of this machine may be busy; what is too slow is judged above.
    monkeypatch.setattr(storage_verdict, "MIN_TOTAL_MBPS", 0.0)

    def run(name: str) -> dict[str, Answer]:
        def on_node(number: int) -> Answer:
            script = render_check(name, str(tmp_path), "token", NODES[number], NODES)
            return parse_answer(subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout)

        with ThreadPoolExecutor(len(NODES)) as pool:
            return dict(zip(NAMES, pool.map(on_node, range(len(NODES))), strict=True))

    first = run("write")
    assert [*judge_written(str(tmp_path), first)] == []
    second = run("watch")
    assert [*judge_watched(str(tmp_path), first, second)] == []
    # A filesystem on which nobody else has written anything.
    (tmp_path / ".muster-check-token" / "gpu-2.here").unlink()
    script = render_check("watch", str(tmp_path), "token", NODES[1], NODES).replace("SEEN_S=15", "SEEN_S=0")
    seen = parse_answer(subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout)
    assert seen.facts["unseen"] == (("gpu-2",),)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")
def test_folders_of_old_checks_are_removed_only_once_the_clock_is_known_to_be_right(tmp_path: Path) -> None:
    """The server's clock is two hours behind: the folder that the check has just created looks old."""
    old, young = tmp_path / ".muster-check-old", tmp_path / ".muster-check-young"
    for folder in (old, young):
        folder.mkdir()
    age(old)
    programs = write_program(tmp_path / "bin", "mkdir", '/bin/mkdir "$@" && exec touch -d "2 hours ago" "$2"')
    answer = run_round("write", tmp_path, NODES[0], programs)
    assert "written" in answer.facts
    assert old.exists()
    own = tmp_path / ".muster-check-token"
    for name in NAMES:
        (own / f"{name}.here").write_text(f"token {name}\n")
    (own / "pointer").write_text("end\n" * 4096)
    age(own)
    assert "watched" in run_round("watch", tmp_path, NODES[1]).facts
    assert {path.name for path in tmp_path.glob(".muster*")} == {young.name, own.name}


def test_a_reader_waits_for_the_last_rename_after_it_has_seen_all_nodes(tmp_path: Path) -> None:
    """Only sleeping takes time: a node appears after 12 s, the last rename 12 s later; 15 s are allowed for each."""
    folder = tmp_path / ".muster-check-token"
    folder.mkdir()
    (folder / "controller.here").write_text("token controller\n")
    (folder / "pointer").write_text("7\n" * 4096)
    (tmp_path / "clock").write_text("0\n")
    sleep = f"""\
cd {tmp_path}
now=$(($(cat clock) + 1))
echo $now >clock
if [ $now = 12 ]; then echo token gpu-2 >.muster-check-token/gpu-2.here; fi
if [ $now = 24 ]; then yes end | head -n 4096 >.muster-check-token/pointer; fi"""
    programs = write_program(tmp_path / "bin", "sleep", sleep)
    write_program(programs, "date", f"cat {tmp_path}/clock")
    answer = run_round("watch", tmp_path, NODES[1], programs)
    assert answer.facts == {"renames": (("0", "0"),), "watched": (("gpu-1",),)}


class AnsweringTransport(LocalTransport):
    """A node that answers each script with what a function returns or raises."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        self._answer = answer

    def run(
        self,
        script: str,
        *,
        stdin: bytes | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        on_line: OnLine | None = None,
    ) -> Completed:
        return Completed(0, self._answer(script), "")


def test_all_nodes_write_at_the_same_time_however_many_there_are() -> None:
    """The speed of all together is what they have written until the slowest was done: 64 times 16 MB in 0.5 s."""
    host = Adopted(hostname="host", user="ops")
    members = tuple(
        node(f"n-{number}", "compute" if number else "controller", number + 10, adopted=host) for number in range(64)
    )
    cluster = desired()
    cluster = replace(cluster, inventory=cluster.inventory.model_copy(update={"nodes": members}))
    meeting, events = Barrier(len(members)), list[Event]()

    def meet(script: str) -> str:
        if script.startswith("rm "):
            return ""
        meeting.wait(timeout=20)
        return WRITTEN if script.startswith("ROUND=write") else WATCHED

    with Sessions(lambda _: AnsweringTransport(meet)) as sessions:
        check_storage(cluster, sessions, events.append)
    assert [event.detail for event in events] == [
        "write and read /shared on all nodes",
        f"/shared: {64 * SIZE_MB / 0.5:.0f} MB/s from all nodes together",
    ]


@pytest.mark.parametrize(
    ("error", "line", "fix"),
    [
        (
            LostConnectionError("n-0", "the connection was lost"),
            "the connection was lost",
            "check the node, then run again",
        ),
        (
            TransportError("n-0", "no answer within 90 s"),
            "/shared: no answer within 90 s",
            "check the server of /shared, and the network between it and n-0",
        ),
    ],
)
def test_the_server_of_a_filesystem_is_not_blamed_for_a_node_that_stops(
    error: TransportError, line: str, fix: str
) -> None:
    cluster = desired()
    member = node("n-0", "controller", 10, adopted=Adopted(hostname="host", user="ops"))
    cluster = replace(cluster, inventory=cluster.inventory.model_copy(update={"nodes": (member,)}))

    def fail(_script: str) -> str:
        raise error

    with Sessions(lambda _: AnsweringTransport(fail)) as sessions, pytest.raises(BootstrapError) as caught:
        check_storage(cluster, sessions, lambda _event: None)
    assert (caught.value.node, caught.value.line, caught.value.fix) == ("n-0", line, fix)


def run_round(name: str, mount: Path, member: Node, programs: Path | None = None) -> Answer:
    """Run a round on a node, with stand-ins for some programs."""
    path = f"{programs}:{os.environ['PATH']}" if programs else os.environ["PATH"]
    script = render_check(name, str(mount), "token", member, NODES)
    done = subprocess.run(
        ["sh", "-c", script], env={"PATH": path}, capture_output=True, text=True, check=True, timeout=60
    )
    return parse_answer(done.stdout)


def write_program(folder: Path, name: str, script: str) -> Path:
    """Write a stand-in for a program; return its folder."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return folder


def age(folder: Path) -> None:
    two_hours_ago = time.time() - 2 * 3600
    os.utime(folder, (two_hours_ago, two_hours_ago))
