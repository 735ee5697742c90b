"""torchrun for the nodes of a job, which also names ranks that the kernel kills for lack of memory.

    python -m trainer.torchrun --nnodes=2 ... -m trainer CONFIG

It takes the options of torchrun and is the same process, so that signals reach it as they reach torchrun.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

from trainer.life.killed_ranks import KilledRanks
from trainer.life.outcome import FILE_VARIABLE


def main() -> None:
    """Run torchrun; the folder of the run is that of its outcome (MUSTER_OUTCOME_FILE)."""
    file = os.environ.get(FILE_VARIABLE)
    if not file:
        sys.exit(
            f"trainer.torchrun: {FILE_VARIABLE} is not set; train.sbatch sets it; elsewhere, start torchrun itself"
        )
    # It would take a tenth of the time that importing torch takes.
    gc.disable()
    from torch.distributed.run import main as run  # noqa: PLC0415  # so that a missing variable is reported at once

    gc.enable()
    with KilledRanks(Path(file).parent):
        run()


if __name__ == "__main__":
    main()
