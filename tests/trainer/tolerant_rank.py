"""A rank that finds every loss healthy, so that its verdicts differ from those of the other ranks.

TOLERANT_RANK=0 python -m tests.trainer.tolerant_rank CONFIG ...
"""

from __future__ import annotations

import os
import runpy
from typing import Any

from trainer.life.health import Action, Health, Verdict


def tolerate() -> None:
    tolerant: Any = Health
    tolerant.judge = lambda _health, _step, _loss, _skipped: Verdict(Action.GO)


if __name__ == "__main__":
    if os.environ["RANK"] == os.environ["TOLERANT_RANK"]:
        tolerate()
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)
