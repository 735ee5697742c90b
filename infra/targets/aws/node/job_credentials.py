"""Fetch credentials of the role of jobs, and store them where the programs of all users find them.

Usage: `python -m infra.targets.aws.node.job_credentials REGION ROLE FOLDER`. Root runs it at intervals: the metadata
service, which hands out the machine's own credentials, is closed to users.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.parse
import xml.etree.ElementTree as ET
from pathlib import Path

from infra.targets.aws.node import imds, signed
from infra.targets.aws.node.signed import Call

API_VERSION = "2011-06-15"
SESSION_S = 3600
"""Longest session of a role that another role assumes."""
CREDENTIALS, CONFIG = "credentials.json", "config"


def main(region: str, role: str, folder: str) -> int:
    """Fetch and store credentials once, and return the exit code."""
    try:
        credentials = assume_role(region, role)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    store(Path(folder), region, credentials)
    return 0


def assume_role(region: str, role: str) -> dict[str, str]:
    """Return new credentials of a role, with the keys that an SDK expects of a credential process."""
    query = {
        "Action": "AssumeRole",
        "Version": API_VERSION,
        "RoleArn": role,
        "RoleSessionName": imds.read("instance-id"),
        "DurationSeconds": str(SESSION_S),
    }
    headers = {"content-type": "application/x-www-form-urlencoded"}
    call = Call("POST", "sts", region, "/", urllib.parse.urlencode(query).encode(), headers)

    def send() -> dict[str, str]:
        with signed.request(call) as answer:
            return parse_credentials(answer.read())

    return signed.retry(send, f"AssumeRole of {role}")


def parse_credentials(answer: bytes) -> dict[str, str]:
    """Return the credentials in an answer of STS."""
    root = ET.fromstring(answer)  # noqa: S314  # AWS's own answer, received over TLS
    values = {element.tag.rpartition("}")[2]: element.text or "" for element in root.iterfind(".//{*}Credentials/{*}*")}
    names = ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")
    return {name: values[name] for name in names}


def store(folder: Path, region: str, credentials: dict[str, str]) -> None:
    """Write the credentials and a configuration that names them; SDKs read them again before they expire."""
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    _write(folder / CREDENTIALS, json.dumps({"Version": 1, **credentials}))
    _write(folder / CONFIG, f"[default]\nregion = {region}\ncredential_process = /bin/cat {folder / CREDENTIALS}\n")


def _write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.chmod(0o644)
    os.replace(new, path)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
