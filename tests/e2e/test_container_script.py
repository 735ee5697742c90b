"""The tests' way to run a script in a container returns all of its output, also if Docker loses it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import docker
import pytest
from docker.models.containers import Container

from cluster import names
from tests.container_script import BASH, run_script
from tests.harness import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture
def container() -> Iterator[Container]:
    labels = {names.CLUSTER: "container-script"}
    started = docker.from_env().containers.run(
        names.IMAGE, ["sleep", "600"], entrypoint="", detach=True, network_mode="none", labels=labels
    )
    yield started
    started.remove(force=True)


def test_code_and_both_outputs_are_returned(container: Container) -> None:
    done = run_script(
        container, "printf $A; echo b >&2; pwd; exit 3", shell=BASH, environment={"A": "a"}, workdir="/etc"
    )
    assert (done.code, done.out) == (3, "ab\n/etc\n")


def test_what_was_printed_before_the_container_ended_is_returned(container: Container) -> None:
    """Nothing follows on the connection, as when Docker loses the output."""

    def end() -> None:
        wait_until(lambda: container.exec_run(["test", "-e", "/var/tmp/began"]).exit_code == 0, "the script runs")
        container.kill()

    ending = threading.Thread(target=end)
    ending.start()
    done = run_script(container, "echo before; touch /var/tmp/began; sleep 600; echo after")
    ending.join()
    assert done.code != 0
    assert done.out == "before\n"
