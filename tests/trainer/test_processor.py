"""The name of the processor, with what kernels say of it."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from trainer import processor


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "processor\t: 0\nmodel name\t: AMD EPYC 7R13 Processor\nprocessor\t: 1\nmodel name\t: other\n",
            "AMD EPYC 7R13 Processor",
        ),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", platform.machine()),
        ("model name\t:\n", platform.machine()),
        (None, platform.machine()),
    ],
)
def test_the_first_processor_is_named(tmp_path: Path, text: str | None, name: str) -> None:
    info = tmp_path / "cpuinfo"
    if text is not None:
        info.write_text(text)
    assert processor.name(info) == name


def test_this_machine_has_one() -> None:
    assert processor.name()
