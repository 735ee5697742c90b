"""A transport to an instance without SSH: scripts run through Run Command, files come through the cluster's bucket."""

from __future__ import annotations

import base64
import shlex
import uuid

from bootstrap.bundle import INSTALLED
from bootstrap.transport.base import DEFAULT_TIMEOUT_S, Completed, OnLine, TransportError, put_script
from infra.targets.aws import run_command
from infra.targets.aws.client import create_client
from infra.targets.aws.instances import translate_errors
from infra.targets.aws.node import parameters
from infra.targets.aws.node.cloud import package_store_command

_TRANSFER_TIMEOUT_S = 600.0


class RunCommandTransport:
    """The scripts and files of one instance; `get` works only where its role may write packages: on the controller."""

    def __init__(self, region: str, instance: str, bucket: str) -> None:
        self._region, self._instance, self._bucket = region, instance, bucket

    def run(
        self,
        script: str,
        *,
        stdin: bytes | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        on_line: OnLine | None = None,  # noqa: ARG002  # Run Command returns the output at the end
    ) -> Completed:
        if stdin is not None:
            encoded = base64.b64encode(stdin).decode()
            script = f"echo {encoded} | base64 -d | sh -c {shlex.quote(script)}"
        return run_command.run(self._region, self._instance, script, timeout)

    def put(self, path: str, data: bytes, mode: int = 0o644, owner: str = "root:root") -> None:
        """Write a small file: the whole command of Systems Manager has a limit of 64 KB."""
        done = self.run(put_script(path, mode, owner, len(data)), stdin=data)
        if done.code != 0:
            raise TransportError(self._instance, f"cannot write {path}: {done.err.strip()}")

    def get(self, path: str) -> bytes:
        """Return a file of any size; its copy in the bucket is deleted at once, with its version."""
        name = f"transfer-{uuid.uuid4().hex}"
        key = parameters.packages(name)
        store = shlex.join([*package_store_command(self._region, self._bucket), name, "store", path])
        done = self.run(f"cd {INSTALLED} && {store}", timeout=_TRANSFER_TIMEOUT_S)
        if done.code != 0:
            raise TransportError(self._instance, f"cannot read {path}: {done.err.strip()}")
        with translate_errors(f"s3://{self._bucket}/{key}", self._region):
            s3 = create_client("s3", self._region)
            answer = s3.get_object(Bucket=self._bucket, Key=key)
            version = {"VersionId": answer["VersionId"]} if "VersionId" in answer else {}
            try:
                data: bytes = answer["Body"].read()
            finally:
                s3.delete_object(Bucket=self._bucket, Key=key, **version)
        return data

    def close(self) -> None:
        """Do nothing: every script is a command of its own."""
