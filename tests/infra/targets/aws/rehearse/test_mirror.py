"""The public servers: machines download over TLS what counts as the pinned source of Slurm."""

from __future__ import annotations

import http.client
import io
import ssl
import tarfile
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bootstrap.steps.cloud import slurm_packages
from infra.targets.aws.node.cloud import LUSTRE_CLIENT
from infra.targets.aws.rehearse.certificates import Authority
from infra.targets.aws.rehearse.mirror import make_mirror, serve_files


@pytest.mark.parametrize("release", slurm_packages.SOURCES)
def test_the_source_counts_as_the_pinned_one_and_names_every_package(release: str) -> None:
    source, mirror = slurm_packages.SOURCES[release], make_mirror()
    content = mirror.files[source.addresses[0]]
    assert f"{sha256(content).hexdigest()} {source.sha256}\n" in mirror.render_digests()
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        listed = tar.extractfile(f"slurm-{source.version}/debian/stand-ins")
        assert listed
        packages = listed.read().decode().split()
    for names in slurm_packages.NAMES.values():
        assert {f"{name}_{source.version}-1_amd64.deb" for name in names} <= set(packages)


def test_files_are_served_under_the_names_of_their_hosts(tmp_path: Path) -> None:
    mirror, authority = make_mirror(), Authority.create()
    trusted = ssl.create_default_context(cadata=authority.pem.decode())
    trusted.check_hostname = False  # The names of the hosts do not resolve here.
    key = urlsplit(LUSTRE_CLIENT.key_url)
    with serve_files(mirror, "127.0.0.1", authority.issue(mirror.hosts, tmp_path)) as port:
        for path, status in ((key.path, 200), ("/other", 404)):
            connection = http.client.HTTPSConnection("127.0.0.1", port, context=trusted, timeout=60)
            connection.request("GET", path, headers={"Host": key.hostname or ""})
            answer = connection.getresponse()
            assert answer.status == status
            assert (b"BEGIN PGP" in answer.read()) is (status == 200)
            connection.close()
