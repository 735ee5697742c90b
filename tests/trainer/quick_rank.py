"""A rank of a run whose lock and retries have short times, so that a test need not wait for half a minute.

[STALE_S=60] python -m tests.trainer.quick_rank CONFIG [key.sub=value ...]
"""

from __future__ import annotations

import os
import sys

from trainer import __main__ as program
from trainer.checkpoint import read_retry, run_lock

BEAT_S, STALE_S = 0.1, 2.0
# No launcher ends the other ranks of a refused start: they end after this time.
RANK_0_TIMEOUT_S = 0.5

if __name__ == "__main__":
    run_lock.BEAT_S, run_lock.STALE_S = BEAT_S, float(os.environ.get("STALE_S", STALE_S))
    read_retry.RETRY_WAITS_S = (0.05, 0.1, 0.2)
    program.RANK_0_TIMEOUT_S = RANK_0_TIMEOUT_S
    status = program.main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
