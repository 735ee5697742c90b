"""Stand-in of the AWS CLI for `aws ssm start-session`: connects stdin and stdout to a port of a rehearsed instance.

Session Manager reaches an instance by its agent; here the instance is a container of this machine, and EC2 has its
address. SSH, its keys and the daemon on the instance are real.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path

import boto3

from tests.harness import REPO

_SSH_DOCUMENT = "AWS-StartSSHSession"
_CHUNK = 65536
_PROGRAM = """#!{python}
import sys
sys.path.insert(0, {repo!r})
from tests.infra.targets.aws.rehearse.session_stand_in import main
sys.exit(main(sys.argv[1:]))
"""


def write_session_tools(folder: Path) -> Path:
    """Write the programs that muster's SSH needs on this machine, and return their folder."""
    folder.mkdir()
    texts = {
        "aws": _PROGRAM.format(python=sys.executable, repo=str(REPO)),
        # The real CLI runs it; the stand-in needs no other program.
        "session-manager-plugin": "#!/bin/sh\nexit 1\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def main(arguments: list[str]) -> int:
    """Run `aws ssm start-session --target ID --document-name NAME --parameters portNumber=N --region R`."""
    if arguments[:2] != ["ssm", "start-session"]:
        print(f"the stand-in of the AWS CLI cannot run: {' '.join(arguments)}", file=sys.stderr)
        return 2
    options = dict(zip(arguments[2::2], arguments[3::2], strict=True))
    if options["--document-name"] != _SSH_DOCUMENT:
        print(f"--document-name: {options['--document-name']!r}; allowed: {_SSH_DOCUMENT}", file=sys.stderr)
        return 2
    port = int(options["--parameters"].removeprefix("portNumber="))
    ec2 = boto3.client("ec2", region_name=options["--region"])
    (reservation,) = ec2.describe_instances(InstanceIds=[options["--target"]])["Reservations"]
    address = reservation["Instances"][0]["PrivateIpAddress"]
    with socket.create_connection((address, port), timeout=10) as connection:
        connection.settimeout(None)
        threading.Thread(target=_send, args=(connection,), daemon=True).start()
        while data := connection.recv(_CHUNK):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
    return 0


def _send(connection: socket.socket) -> None:
    while data := os.read(sys.stdin.fileno(), _CHUNK):
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
