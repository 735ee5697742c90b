"""Wait until EC2 announces that it takes this machine back, two minutes before, and print when.

A machine that is not bought as spot is never taken back: the program ends at once. Usage:
`python -m infra.targets.aws.node.spot_notice`. See
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from infra.targets.aws.node import imds

# The interval that AWS recommends.
PAUSE_S = 5.0


def main(sleep: Callable[[float], object] = time.sleep) -> int:
    """Wait for the notice, print it, and return the exit code."""
    if _read("instance-life-cycle", sleep) != "spot":
        return 0
    while not (text := _read("spot/instance-action", sleep)):
        sleep(PAUSE_S)
    notice = json.loads(text)
    print(f"spot: EC2 will {notice['action']} it at {notice['time']}", flush=True)
    return 0


def _read(path: str, sleep: Callable[[float], object]) -> str:
    """Return a metadata value, empty if there is none; the service is asked again if it does not answer."""
    while True:
        try:
            return imds.read_optional(path)
        except OSError:  # includes what urllib raises
            sleep(PAUSE_S)


if __name__ == "__main__":
    sys.exit(main())
