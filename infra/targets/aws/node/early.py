"""What user data does before the bundle is there: wait for the machine's name, fetch the bundle, tell of a failure.

Plain Python 3.10 without packages: user data carries this file and runs it before anything is installed."""

from __future__ import annotations

import json
import sys
import time

from infra.targets.aws.node import imds, signed

GROUP_TAG = "muster.group"
NUMBERS_TAG = "muster.numbers"
LINE = 1000
"""As much of a log line as a report holds; a parameter has 4 KB."""


def name(tag: str) -> str:
    """The machine's name: from its own tag, or from the numbers that all machines of one launch carry."""

    def once() -> str:
        found = imds.tag(tag) or numbered(imds.tag(GROUP_TAG), imds.tag(NUMBERS_TAG), imds.read("ami-launch-index"))
        if not found:
            raise OSError(f"the machine has no tag {tag}")
        return found

    return signed.patiently(once, "name")


def numbered(group: str, numbers: str, index: str) -> str:
    """One call starts many machines with the same tags; each takes the number at its place in the call."""
    spans = [part.partition("-") for part in numbers.split()]
    every = [number for first, _, last in spans for number in range(int(first), int(last or first) + 1)]
    return f"{group}-{every[int(index)]}" if group and int(index) < len(every) else ""


def report(region: str, parameter: str, said: dict[str, str]) -> None:
    instance = signed.patiently(lambda: imds.read("instance-id"), "instance id")
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    value = json.dumps({**said, "line": said["line"][-LINE:], "instance": instance, "at": at})
    signed.ssm(region, "PutParameter", Name=parameter, Value=value, Type="String", Overwrite=True)


def get(region: str, bucket: str, key: str, path: str, sha256: str) -> None:
    found = signed.fetch(region, bucket, key, path)
    if found != sha256:
        raise RuntimeError(f"s3://{bucket}/{key} has sha256 {found}, not {sha256}: it is not what was uploaded")


def main(command: str, *words: str) -> int:
    try:
        if command == "name":
            print(name(*words))
        elif command == "get":
            get(*words)
        else:
            region, parameter, bundle, state, step, line = words
            report(region, parameter, {"bundle": bundle, "state": state, "step": step, "line": line})
    except RuntimeError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
