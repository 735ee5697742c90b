"""The image of trainer/Dockerfile on this machine, which some nightly tests need."""

from __future__ import annotations

import pytest

from setup.pins import TRAINER_IMAGE
from setup.run import ask


def require_trainer_image() -> None:
    """Skip the test if the image does not exist: to build it takes minutes and downloads gigabytes."""
    if ask(["docker", "image", "inspect", TRAINER_IMAGE]).code != 0:
        pytest.skip("no image of the trainer: run `python3 -m setup trainer-image`")
