"""The name of the processor is read from /proc/cpuinfo."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from trainer.host import processor_name


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
def test_the_name_of_the_first_processor_is_used(tmp_path: Path, text: str | None, name: str) -> None:
    info = tmp_path / "cpuinfo"
    if text is not None:
        info.write_text(text)
    assert processor_name(info) == name


def test_this_machine_has_a_processor_name() -> None:
    assert processor_name()
