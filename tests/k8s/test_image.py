"""The trainer's Dockerfile: pinned, the lock of the nodes' environment, an ordinary user, and what pods start."""

from __future__ import annotations

import re
from pathlib import Path

from k8s.job import TrainingJob
from k8s.manifests import render
from setup.env import LOCK
from setup.pins import OFFICIAL_BASE
from tests.k8s.test_manifests import find_pod

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "trainer" / "Dockerfile").read_text()


def test_the_base_is_the_pinned_one() -> None:
    assert re.findall(r"(?m)^ARG BASE=(.*)$", DOCKERFILE) == [OFFICIAL_BASE]
    assert set(re.findall(r"(?m)^FROM (\S+)", DOCKERFILE)) == {"${BASE}"}


def test_packages_are_those_of_the_nodes_lock() -> None:
    assert LOCK == "trainer/requirements.lock"
    assert "COPY requirements.lock /tmp/requirements.lock" in DOCKERFILE
    (install,) = re.findall(r"pip install ([^&]*)", DOCKERFILE)
    assert "--require-hashes" in install
    assert install.rstrip("\\\n ").endswith("-r /tmp/requirements.lock")


def test_pods_get_the_signal_that_makes_ranks_save_whatever_the_base() -> None:
    assert re.findall(r"(?m)^STOPSIGNAL (.*)$", DOCKERFILE) == ["SIGTERM"]


def test_pods_run_as_the_user_of_the_image() -> None:
    pod = find_pod(render(TrainingJob(name="a", image="image", arguments=("tiny-llama",), claim="runs")))
    user = pod["securityContext"]["runAsUser"]
    assert re.findall(r"(?m)^USER (.*)$", DOCKERFILE) == [f"{user}:{user}"]
