"""What user data does before the bundle is there: read the machine's name, fetch the bundle, report a failure.

Plain Python 3.10 without packages: user data contains this file and runs it before anything is installed.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request

from infra.targets.aws.node import imds, signed

GROUP_TAG = "muster.group"
NUMBERS_TAG = "muster.numbers"
OPTIONAL_RETRY_FOR_S = 1.0
"""A machine for which no packages are stored must soon fetch package lists instead."""
MAX_LINE = 1000
"""Characters of a log line that a report holds; a parameter holds 4 KB."""


def read_name(tag: str) -> str:
    """Return the machine's node name: from its own tag, or from tags that all machines of a launch share."""

    def read() -> str:
        name = imds.read_tag(tag) or derive_name(
            imds.read_tag(GROUP_TAG), imds.read_tag(NUMBERS_TAG), imds.read("ami-launch-index")
        )
        if not name:
            raise OSError(f"the machine has no tag {tag}")
        return name

    return signed.retry(read, "name")


def derive_name(group: str, numbers: str, index: str) -> str:
    """Return the name of one machine of a launch: `numbers` such as `1-3 7` are assigned in launch order."""
    spans = [part.partition("-") for part in numbers.split()]
    every = [number for first, _, last in spans for number in range(int(first), int(last or first) + 1)]
    return f"{group}-{every[int(index)]}" if group and int(index) < len(every) else ""


def report(region: str, parameter: str, values: dict[str, str]) -> None:
    """Write how far the set-up got to the node's parameter."""
    instance = signed.retry(lambda: imds.read("instance-id"), "instance id")
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    value = json.dumps({**values, "line": values["line"][-MAX_LINE:], "instance": instance, "at": at})
    signed.ssm(region, "PutParameter", Name=parameter, Value=value, Type="String", Overwrite=True)


def get(region: str, bucket: str, key: str, path: str, sha256: str = "") -> None:
    """Download an object; raise RuntimeError if it does not have the expected SHA-256.

    Without one, it is an object that may not exist.
    """
    actual = signed.fetch(region, bucket, key, path, signed.RETRY_FOR_S if sha256 else OPTIONAL_RETRY_FOR_S)
    _check(f"s3://{bucket}/{key}", actual, sha256 or actual)


def download(url: str, path: str, sha256: str) -> None:
    """Download a public file; raise RuntimeError if it does not have the expected SHA-256."""

    def save() -> str:
        return signed.save(urllib.request.urlopen(url, timeout=signed.TIMEOUT_S), path)  # noqa: S310

    _check(url, signed.retry(save, url), sha256)


def _check(what: str, actual: str, expected: str) -> None:
    if actual != expected:
        raise RuntimeError(f"{what} has sha256 {actual}, expected {expected}")


def main(command: str, *arguments: str) -> int:
    """Run `name`, `get`, `download` or `report` and return the exit code."""
    try:
        if command == "name":
            print(read_name(*arguments))
        elif command == "get":
            get(*arguments)
        elif command == "download":
            download(*arguments)
        else:
            region, parameter, bundle, state, step, line = arguments
            report(region, parameter, {"bundle": bundle, "state": state, "step": step, "line": line})
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
