"""Kubectl, the only way to a Kubernetes cluster: it has the user's contexts, logins and plugins."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

JOBSET_RESOURCE = "jobsets.jobset.x-k8s.io"
JOB_RESOURCE = "jobs.batch"
TIMEOUT_S = 120.0
"""Seconds for a call; kubectl itself waits forever for a cluster that does not answer."""
# kubectl's libraries log each attempt, before kubectl prints the error.
_LOG_LINE = re.compile(r"[EWI]\d{4} ")
_PARTIAL_LIST = "unable to retrieve the complete list of server APIs"


class KubectlError(Exception):
    """A failed call of kubectl; the message is its error."""


class KubectlMissing(KubectlError):
    """Raised if kubectl is not installed."""


@dataclass(frozen=True)
class Kubectl:
    """The kubectl of this machine, for one namespace and context; empty means the user's current one."""

    namespace: str = ""
    context: str = ""

    @property
    def options(self) -> list[str]:
        """The options that choose context and namespace, for kubectl and for `muster kubernetes`."""
        return [
            *([f"--context={self.context}"] if self.context else []),
            *([f"--namespace={self.namespace}"] if self.namespace else []),
        ]

    def format(self, *arguments: str) -> str:
        """Return a command line for the user to type."""
        return " ".join(["kubectl", *self.options, *arguments])

    def run(self, *arguments: str, data: str = "", timeout_s: float = TIMEOUT_S) -> str:
        """Run kubectl and return its output, or raise a KubectlError with its message."""
        done = self._run(*arguments, data=data, timeout_s=timeout_s)
        if done.returncode != 0:
            raise _make_error(done)
        return done.stdout

    def has_resource(self, resource: str) -> bool:
        """Return whether the cluster has a kind of objects, such as jobsets.jobset.x-k8s.io."""
        group = resource.partition(".")[2]
        done = self._run("api-resources", f"--api-group={group}", "--output=name")
        # kubectl prints what it can list, and fails if the server of any other group does not answer.
        is_other_group = _PARTIAL_LIST in done.stderr and group not in done.stderr
        if resource in done.stdout.split() or done.returncode == 0 or is_other_group:
            return resource in done.stdout.split()
        raise _make_error(done)

    def list_objects(self, resources: Sequence[str], selector: str) -> list[str]:
        """Return the objects with these labels as KIND/NAME."""
        arguments = ("get", ",".join(resources), f"--selector={selector}", "--ignore-not-found", "--output=name")
        return self.run(*arguments).split()

    def _run(self, *arguments: str, data: str = "", timeout_s: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        program = shutil.which("kubectl")
        if program is None:
            raise KubectlMissing("kubectl is not installed, or not in PATH")
        command = [program, *self.options, *arguments]
        try:
            return subprocess.run(command, input=data, capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            raise KubectlError(f"the cluster did not answer within {timeout_s:.0f} s") from None


def _make_error(done: subprocess.CompletedProcess[str]) -> KubectlError:
    lines = [line for line in done.stderr.strip().splitlines() if not _LOG_LINE.match(line)]
    return KubectlError("\n".join(lines) or f"kubectl ended with exit code {done.returncode}")
