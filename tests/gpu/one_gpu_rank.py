"""`python -m trainer` as one of several ranks that share the first GPU and use NCCL.

NCCL rejects two ranks on one GPU of a host, but accepts ranks that claim to be on different hosts, and connects them by
sockets. HOLD=RANK:STEP makes a rank stop before a step.

torchrun --nproc-per-node=2 -m tests.gpu.one_gpu_rank PRESET key=value ...
"""

from __future__ import annotations

import os
import sys


def share_gpu() -> None:
    """Set the variables before torch is imported: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-hostid"""
    os.environ["LOCAL_RANK"] = "0"
    os.environ["NCCL_HOSTID"] = f"rank-{os.environ['RANK']}"
    os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    # Two contexts take turns on the GPU, so a kernel that waits for the other rank should be small.
    os.environ["NCCL_MAX_CTAS"] = "2"


if __name__ == "__main__":
    share_gpu()
    from tests.trainer.held_rank import hold
    from trainer.__main__ import main

    rank, _, step = os.environ.get("HOLD", "").partition(":")
    if rank == os.environ["RANK"]:
        hold(int(step))
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)
