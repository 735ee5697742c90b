"""The control plane of a test's cluster: etcd, API server, controllers, scheduler and DNS as processes."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.kubernetes.processes import Namespace
from tests.harness import wait_until

REPO = Path(__file__).resolve().parents[3]
API_PORT = 6443
NODE_GRACE_S = 20
"""Seconds without a sign of life after which a node counts as lost; Kubernetes' default is 50."""
_CLIENTS = {
    "admin": ("admin", "system:masters"),
    "controllers": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "dns": ("dns", "system:masters"),
    "job-sets": ("job-sets", ""),
}
"""Users and their groups, by the name of their kubeconfig."""


@dataclass
class ControlPlane:
    """Certificates, users and processes of a control plane in a namespace."""

    namespace: Namespace
    programs: Path
    """As `setup.kubernetes.locate` returns it."""
    nodes: tuple[str, ...]
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.namespace.folder / "control-plane"

    def start(self) -> None:
        """Start all parts and wait until they answer."""
        self.folder.mkdir()
        self._make_certificates()
        self._make_users()
        self._write_kubectl()
        self._start_api_server()
        self._start_controllers()
        self._start_dns()

    def kubectl(self, *arguments: str, data: str = "", timeout_s: float = 120) -> str:
        """Run kubectl as an administrator and return its output."""
        command = [str(self.kubectl_folder / "kubectl"), *arguments]
        done = subprocess.run(command, input=data, capture_output=True, text=True, timeout=timeout_s, check=False)
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def answers(self, *arguments: str) -> bool:
        """Return whether kubectl succeeds."""
        command = [str(self.kubectl_folder / "kubectl"), *arguments]
        return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode == 0

    @property
    def kubectl_folder(self) -> Path:
        """The folder of a kubectl that reaches this cluster, for PATH."""
        return self.namespace.folder / "path"

    def kubeconfig(self, client: str) -> Path:
        """Return the file with which a client reaches the API server."""
        return self.folder / f"{client}.kubeconfig"

    def issue(self, name: str, addresses: str) -> None:
        """Create NAME.key and NAME.crt, which the cluster's authority has signed."""
        request = ("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        self._openssl(*request, "-subj", f"/CN={name}")
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={addresses}\n")
        authority = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", *authority, "-out", f"{name}.crt", "-extfile", f"{name}.ext"
        )

    def _write_kubectl(self) -> None:
        self.kubectl_folder.mkdir()
        program = self.kubectl_folder / "kubectl"
        command = self.namespace.enter(self.programs / "bin/kubectl", f"--kubeconfig={self.kubeconfig('admin')}")
        program.write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n')
        program.chmod(0o755)

    def _make_certificates(self) -> None:
        self._openssl("genrsa", "-out", "accounts.key", "2048")
        new = ("-newkey", "rsa:2048", "-nodes")
        self._openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=test")
        self.issue("api", f"IP:127.0.0.1,IP:{self.namespace.address},DNS:kubernetes.default.svc")

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

    def _make_users(self) -> None:
        nodes = {node: (f"system:node:{node}", "system:nodes") for node in self.nodes}
        lines = []
        for client, (user, group) in {**_CLIENTS, **nodes}.items():
            token = secrets.token_hex(16)
            lines.append(f'{token},{user},{user},"{group}"\n')
            cluster = {
                "server": f"https://127.0.0.1:{API_PORT}",
                "certificate-authority": str(self.folder / "ca.crt"),
            }
            config = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": user, "user": {"token": token}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
                "current-context": "test",
            }
            self.kubeconfig(client).write_text(json.dumps(config))  # YAML, too
        (self.folder / "tokens.csv").write_text("".join(lines))

    def _start_api_server(self) -> None:
        etcd = "http://127.0.0.1:2379"
        self.namespace.start(
            "etcd",
            self.programs / "debian/usr/bin/etcd",
            *("--data-dir", self.folder / "etcd", "--unsafe-no-fsync"),
            *("--listen-client-urls", etcd, "--advertise-client-urls", etcd),
            *("--listen-peer-urls", "http://127.0.0.1:2380"),
        )
        accounts = self.folder / "accounts.key"
        self.namespace.start(
            "api-server",
            self.programs / "bin/kube-apiserver",
            *(f"--etcd-servers={etcd}", "--bind-address=0.0.0.0", f"--secure-port={API_PORT}"),
            f"--advertise-address={self.namespace.address}",
            *(f"--tls-cert-file={self.folder / 'api.crt'}", f"--tls-private-key-file={self.folder / 'api.key'}"),
            *(f"--cert-dir={self.folder}", f"--token-auth-file={self.folder / 'tokens.csv'}"),
            *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
            *(f"--service-account-key-file={accounts}", f"--service-account-signing-key-file={accounts}"),
            *("--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.96.0.0/16"),
            # Without it, `kubectl logs` looks up the node's name.
            "--kubelet-preferred-address-types=InternalIP",
        )
        wait_until(lambda: self.answers("get", "--raw=/readyz"), "the API server")

    def _start_controllers(self) -> None:
        self.namespace.start(
            "controllers",
            self.programs / "bin/kube-controller-manager",
            f"--kubeconfig={self.kubeconfig('controllers')}",
            f"--service-account-private-key-file={self.folder / 'accounts.key'}",
            f"--root-ca-file={self.folder / 'ca.crt'}",
            *("--use-service-account-credentials", "--leader-elect=false", f"--cert-dir={self.folder}"),
            f"--node-monitor-grace-period={NODE_GRACE_S}s",
        )
        scheduler = ("--leader-elect=false", f"--cert-dir={self.folder}")
        self.namespace.start(
            "scheduler",
            self.programs / "bin/kube-scheduler",
            f"--kubeconfig={self.kubeconfig('scheduler')}",
            *scheduler,
        )
        wait_until(lambda: self.answers("get", "serviceaccount", "default"), "the controllers")

    def _start_dns(self) -> None:
        server = (sys.executable, "-m", "tests.e2e.kubernetes.dns", self.kubeconfig("dns"), self.namespace.address)
        self.namespace.start("dns", *server, env={"PYTHONPATH": str(REPO)})
