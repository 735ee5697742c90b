"""Import what the forks of a test need, and leave it out of their garbage collections.

A collection in a fork looks at all objects, and so copies the memory that they share with the other forks: 0.3 s.
"""

from __future__ import annotations

import gc
import importlib

MODULES = (
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
    # Imported by torch when ranks form a group and when a checkpoint is read.
    "torch.distributed.checkpoint.default_planner",
    "numpy.ma",
    "trainer.loop.session",
    "trainer.data.synthetic",
    "trainer.models.llama",
    "tests.trainer.matmul_rate",
    "tests.trainer.curves",
)

gc.disable()
for name in MODULES:
    importlib.import_module(name)
gc.freeze()
gc.enable()
