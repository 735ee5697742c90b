"""JobSet on a test's cluster: its published definition, role and webhooks, and its controller as a process.

In other clusters the controller runs in a pod, and the API server calls its webhooks through a service.
"""

from __future__ import annotations

import base64
import json
import subprocess
from typing import Any

import yaml

from tests.e2e.kubernetes.control_plane import ControlPlane
from tests.harness import wait_until

PROCESS = "job-sets"
WEBHOOK_PORT = 9443
HEALTH_PORT = 8081
_ADDRESS = "127.0.0.1"
_DEFINITION = "customresourcedefinition/jobsets.jobset.x-k8s.io"
_ROLE = "manager-role"


def start_job_sets(plane: ControlPlane) -> None:
    """Install JobSet on a cluster, start its controller, and wait until JobSets can be created."""
    manifests = plane.programs / "jobset"
    plane.kubectl("apply", "--server-side", f"--filename={manifests / 'crd/bases'}")
    # Else the controller does not find the definition, and looks for it again only after 10 s. The command fails if the
    # definition has no state yet.
    established = ("wait", "--for=condition=Established", _DEFINITION, "--timeout=10s")
    wait_until(lambda: plane.answers(*established), "the definition of JobSet")
    plane.kubectl("apply", f"--filename={manifests / 'rbac/role.yaml'}")
    plane.kubectl("create", "clusterrolebinding", PROCESS, f"--clusterrole={_ROLE}", f"--user={PROCESS}")
    certificates = plane.folder / PROCESS
    certificates.mkdir()
    plane.issue(PROCESS, f"IP:{_ADDRESS}")
    for kind in ("crt", "key"):
        (certificates / f"tls.{kind}").symlink_to(plane.folder / f"{PROCESS}.{kind}")
    settings = plane.folder / "job-sets.json"
    settings.write_text(json.dumps(_describe_controller(str(certificates))))  # YAML, too
    plane.namespace.start(
        PROCESS,
        plane.programs / "bin/jobset",
        f"--config={settings}",
        f"--kubeconfig={plane.kubeconfig(PROCESS)}",
    )
    health = plane.namespace.enter("curl", "-sf", f"http://{_ADDRESS}:{HEALTH_PORT}/readyz")
    wait_until(
        lambda: subprocess.run(health, check=False, capture_output=True).returncode == 0, "the controller of JobSet"
    )
    authority = (plane.folder / "ca.crt").read_bytes()
    webhooks = address_webhooks(plane.kubectl("kustomize", str(manifests / "webhook")), authority)
    plane.kubectl("apply", "--server-side", "--filename=-", data=yaml.safe_dump_all(webhooks))


def address_webhooks(manifests: str, authority: bytes) -> list[dict[str, Any]]:
    """Return the webhooks with the address of the controller's process instead of that of a service."""
    webhooks = [part for part in yaml.safe_load_all(manifests) if part["kind"].endswith("WebhookConfiguration")]
    for configuration in webhooks:
        for webhook in configuration["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            url = f"https://{_ADDRESS}:{WEBHOOK_PORT}{path}"
            webhook["clientConfig"] = {"url": url, "caBundle": base64.b64encode(authority).decode()}
    return webhooks


def _describe_controller(certificates: str) -> dict[str, object]:
    return {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "internalCertManagement": {"enable": False},
        "leaderElection": {"leaderElect": False},
        "webhook": {"host": _ADDRESS, "port": WEBHOOK_PORT, "certDir": certificates},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"{_ADDRESS}:{HEALTH_PORT}"},
    }
