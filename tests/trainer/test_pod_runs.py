"""Pods of a training job on Kubernetes, as processes of this machine: real torchrun, real signals, real checkpoints."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.trainer.launch import (
    SMALL_LLAMA,
    Launched,
    assert_finished,
    checkpoint,
    checkpoint_steps,
    forked,
    losses,
    outcome,
    started,
    wait_for_step,
)
from tests.trainer.pod_parts import make_node, make_variables
from tests.trainer.test_life_ranks import free_port
from trainer import pod
from trainer.life.outcome import Code

# With a constant rate, a run with more steps is the same up to there. So a run that must not end before it is stopped
# can have any number of steps.
RUN = (*SMALL_LLAMA, "parallel.strategy=ddp", "schedule.kind=constant", "batch.size=4", "batch.micro=2")
ENDLESS = 1_000_000


@pytest.fixture
def port() -> int:
    """Return a port that stays free from one start of the pods to the next."""
    return free_port()


@contextmanager
def start_pod(
    folder: Path, port: int, index: int, *settings: str, nodes: int = 2, attempt: str = "1"
) -> Iterator[Launched]:
    """Start a pod with the variables of its manifest; what still runs at the end of the block is killed."""
    cwd = folder.parent / f"pod-{index}"
    cwd.mkdir(exist_ok=True)
    variables = make_variables(folder, port, index, nodes=nodes, attempt=attempt)
    with started([sys.executable, "-m", "trainer.pod", *settings], cwd, **variables) as run:
        yield run


def start_pods(stack: ExitStack, folder: Path, port: int, steps: int, attempt: str) -> list[Launched]:
    settings = (*RUN, f"steps={steps}", "checkpoint.every=20")
    return [stack.enter_context(start_pod(folder, port, index, *settings, attempt=attempt)) for index in range(2)]


def read_checksums(folder: Path, step: int) -> dict[str, list[str]]:
    """Return the checksums of every rank's part of a checkpoint."""
    files = json.loads((checkpoint(folder, step) / "manifest.json").read_text())["files"]
    return {name: entry["sha256"] for name, entry in files.items() if name.startswith("shard-")}


def assert_same_as_undisturbed(folder: Path, steps: int) -> None:
    """Compare the run bit for bit with one of the same ranks that nothing disturbed."""
    undisturbed = folder.parent / "undisturbed"
    settings = [*RUN, f"steps={steps}", "checkpoint.every=20", f"run.folder={undisturbed}"]
    with forked(2, settings, folder.parent) as run:
        assert_finished(run)
    assert losses(folder) == losses(undisturbed)
    assert read_checksums(folder, steps) == read_checksums(undisturbed, steps)


@pytest.mark.nightly
def test_an_evicted_pod_saves_and_the_next_pods_continue_bit_for_bit(tmp_path: Path, port: int) -> None:
    folder = tmp_path / "run"
    with ExitStack() as stack:
        first, evicted = start_pods(stack, folder, port, ENDLESS, "1")
        wait_for_step(first, folder, 3)
        evicted.process.send_signal(signal.SIGTERM)
        assert [evicted.wait(), first.wait()] == [Code.REQUEUE, Code.REQUEUE], first.output + evicted.output
    assert (folder / ".ranks-began").exists()
    saved = checkpoint_steps(folder)[-1]
    assert (outcome(folder)["outcome"], outcome(folder)["step"]) == ("requeue", saved)
    # The stop file and the signal race.
    assert outcome(folder)["reason"].startswith(("preempted", "warned by a signal"))

    steps = saved + 10
    with ExitStack() as stack:
        pods = start_pods(stack, folder, port, steps, "2")
        assert [run.wait() for run in pods] == [0, 0], pods[0].output + pods[1].output
    assert (folder / "requeues").read_text().startswith(f"job step={saved:08d} requeue=1 ")
    assert_same_as_undisturbed(folder, steps)

    # A pod that is replaced after the end does not wait for the others.
    with start_pod(folder, port, 1, *RUN, attempt="2") as late:
        assert late.wait() == Code.FINISHED, late.output


@pytest.mark.nightly
def test_a_lost_pod_is_replaced_and_joins_the_others(tmp_path: Path, port: int) -> None:
    """As in the form without JobSet: the other pods stay, and the id of the attempt is the same."""
    folder = tmp_path / "run"
    with ExitStack() as stack:
        first, lost = start_pods(stack, folder, port, ENDLESS, "1")
        first.until(lambda: checkpoint_steps(folder) != [], "checkpoint")
        lost.kill()
        before = max(losses(folder))
        replaced = stack.enter_context(
            start_pod(folder, port, 1, *RUN, f"steps={ENDLESS}", "checkpoint.every=20", attempt="1")
        )
        wait_for_step(first, folder, before + 5)
        first.process.send_signal(signal.SIGTERM)
        assert [first.wait(), replaced.wait()] == [Code.REQUEUE, Code.REQUEUE], first.output + replaced.output
    steps = checkpoint_steps(folder)[-1] + 5
    with ExitStack() as stack:
        pods = start_pods(stack, folder, port, steps, "2")
        assert [run.wait() for run in pods] == [0, 0], pods[0].output + pods[1].output
    assert_same_as_undisturbed(folder, steps)


def test_a_pod_that_waits_for_others_ends_at_sigterm(tmp_path: Path, port: int) -> None:
    folder = tmp_path / "run"
    with start_pod(folder, port, 0, *RUN) as run:
        run.until(lambda: "node 0 of 2" in run.output, "start")
        run.process.send_signal(signal.SIGTERM)
        assert run.wait() == Code.REQUEUE, run.output
    assert not (folder / ".ranks-began").exists()
    # The request was for these pods: the next ones do not obey it. Their restart does not count as lack of progress.
    pod.prepare_folder(make_node(folder, job="job"))
    assert not (folder / "stop").exists()
    assert (folder / "requeues").read_text().endswith(" preempted\n")


@pytest.mark.nightly
def test_settings_that_the_trainer_refuses_end_the_job(tmp_path: Path, port: int) -> None:
    folder = tmp_path / "run"
    with start_pod(folder, port, 0, *RUN, "steps=none", nodes=1) as run:
        assert run.wait() == Code.BAD_INPUT, run.output
    assert outcome(folder)["outcome"] == "bad_input"
