"""`muster image` on the local target: an image is built, tested by booting and recorded, and nodes start from it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import docker
import pytest

from tests.harness import REPO, Spec, Stack, small_spec

pytestmark = pytest.mark.nightly


@pytest.fixture
def stack(make_stack: Callable[[str, Spec], Stack]) -> Iterator[Stack]:
    described = make_stack("image", small_spec(groups={"cpu": {"count": 1}}))
    yield described
    described.muster("teardown", "--yes", "--force", check=False)
    described.spec.pop("local", None)
    for image in list_images(described):
        run_image(described, "remove", image)


def run_image(stack: Stack, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "muster.cli", "image", *args, "--stack", stack.name]
    done = subprocess.run(command, env=stack.environment(), cwd=REPO, text=True, capture_output=True, timeout=300)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def list_images(stack: Stack) -> list[str]:
    return re.findall(r"muster-node-baked:[\w.-]+", run_image(stack, "list").stdout)


def test_nodes_start_from_a_built_image(stack: Stack) -> None:
    printed = run_image(stack, "build").stdout
    (image,) = set(re.findall(r"local\.image: (\S+)", printed))
    assert list_images(stack) == [image]
    record = json.loads((stack.home / "images" / f"{image.replace(':', '_')}.json").read_text())
    assert {"slurmctld", "slurmd", "slurmdbd", "sackd", "mariadb-server"} <= set(record["packages"])
    engine = docker.from_env()
    first = engine.images.get(image)
    assert first.tag(f"{image}-untested")
    again = run_image(stack, "build")
    assert "exists already" in " ".join((again.stdout + again.stderr).split())
    assert engine.images.get(image).id == first.id
    assert engine.images.get(image).tags == [image]
    stack.spec["local"] = {"image": image}
    stack.up()
    assert {stack.container(node).attrs["Config"]["Image"] for node in ("controller", "login", "cpu-1")} == {image}
    assert stack.ssh("login", "srun -p cpu hostname") == "cpu-1"
    refused = run_image(stack, "remove", image, check=False)
    assert refused.returncode != 0
    assert "so nodes start from it" in refused.stderr
    stack.muster("teardown", "--yes", "--force")
    assert stack.exists() == []
    receipt = json.loads(max((stack.home / "receipts").glob("*.json")).read_text())
    assert image in [entry["name"] for entry in receipt["kept"]], (
        "a user would not know that the image still takes room"
    )
    assert list_images(stack) == [image]
    del stack.spec["local"]
    run_image(stack, "remove", image)
    assert list_images(stack) == []
