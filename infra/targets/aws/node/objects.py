"""`python -m infra.targets.aws.node.objects REGION BUCKET KEY fetch|store PATH`: one object, for scripts."""

from __future__ import annotations

import sys

from infra.targets.aws.node import signed

# A script asks again by itself; it must not wait here for what is not there yet.
PATIENCE_S = 5.0


def main(region: str, bucket: str, key: str, command: str, path: str) -> int:
    try:
        if command == "fetch":
            signed.fetch(region, bucket, key, path, PATIENCE_S)
        else:
            signed.store(region, bucket, key, path)
    except RuntimeError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
