"""Fetch or store an archive of packages in the cluster's bucket; called by the script that builds Slurm.

Usage: `python -m infra.targets.aws.node.package_store REGION BUCKET NAME fetch|store PATH`.
"""

from __future__ import annotations

import sys

from infra.targets.aws.node import parameters, signed

# The calling script has a retry loop of its own, so an object that does not exist yet must fail quickly.
RETRY_FOR_S = 5.0


def main(region: str, bucket: str, name: str, command: str, path: str) -> int:
    """Run one transfer and return the exit code."""
    key = parameters.packages(name)
    try:
        if command == "fetch":
            signed.fetch(region, bucket, key, path, RETRY_FOR_S)
        else:
            signed.store(region, bucket, key, path)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
