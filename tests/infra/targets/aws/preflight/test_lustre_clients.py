"""Pre-flight of Lustre clients: the repository's index against the newest kernel of Ubuntu's index."""

from __future__ import annotations

import gzip
import http.client
import zlib
from pathlib import Path
from typing import Any

import pytest

from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.lustre_clients import (
    check_lustre_clients,
    fetch_index,
    find_newest_kernel,
    judge_clients,
)
from infra.targets.aws.preflight.subject import Subject
from tests.infra.targets.aws.preflight.conftest import CannedAws
from tests.infra.targets.aws.preflight.issue_text import format_issues
from tests.infra.targets.aws.specs import spec

LUSTRE = {"shared": {"kind": "fsx-lustre", "mount": "/shared"}}


def index(*names: str, newest: str = "") -> str:
    """Return an index with these packages, and with the kernel that linux-image-aws installs."""
    meta = f"Package: linux-image-aws\nSource: linux-meta-aws-6.8\nDepends: linux-image-{newest}\nSize: 1\n\n"
    return "".join(f"Package: {name}\nVersion: 1\n\n" for name in names) + (meta if newest else "")


CLIENTS = index("lustre-client-modules-aws", "lustre-client-modules-6.8.0-1041-aws")
UBUNTU = index("linux-image-6.8.0-1041-aws", "linux-image-6.8.0-1045-aws", newest="6.8.0-1045-aws")


def test_a_client_for_the_newest_kernel_is_enough() -> None:
    clients = CLIENTS + index("lustre-client-modules-6.8.0-1045-aws")
    assert format_issues(judge_clients(clients, UBUNTU, "x86_64")) == []


@pytest.mark.parametrize(
    ("clients", "ubuntu", "issue"),
    [
        (
            CLIENTS,
            UBUNTU,
            "warning lustre_kernel storage: there is no Lustre client yet for 6.8.0-1045-aws, the newest kernel for "
            "jammy on x86_64; fix: nodes whose image has it install 6.8.0-1041-aws and restart once; "
            "`aws.ami` with an older image avoids that",
        ),
        (
            CLIENTS,
            index("linux-image-6.8.0-1045-aws", newest="6.8.0-1045-aws"),
            "error lustre_kernel storage: there is no Lustre client yet for 6.8.0-1045-aws, the newest kernel for "
            "jammy on x86_64; fix: set `aws.ami` and `aws.plain_ami` to images that have a client",
        ),
        (
            index("lustre-client-utils"),
            UBUNTU,
            "error lustre_clients_none storage: https://fsx-lustre-client-repo.s3.amazonaws.com/ubuntu has no Lustre "
            "client for jammy on x86_64; fix: use other storage, or images that have a client",
        ),
    ],
)
def test_each_missing_client_has_its_message(clients: str, ubuntu: str, issue: str) -> None:
    assert format_issues(judge_clients(clients, ubuntu, "x86_64")) == [issue]


def test_the_newest_kernel_is_that_of_the_last_entry() -> None:
    older = index(newest="5.15.0-1084-aws")
    assert find_newest_kernel(older + UBUNTU) == "6.8.0-1045-aws"
    with pytest.raises(ValueError, match="no linux-image-aws"):
        find_newest_kernel(CLIENTS)


@pytest.mark.parametrize("clients", [CLIENTS, index("lustre-client-utils")])
def test_a_missing_client_does_not_block_a_cluster_that_exists(clients: str) -> None:
    ubuntu = index("linux-image-6.8.0-1045-aws", newest="6.8.0-1045-aws")
    assert [issue.level for issue in judge_clients(clients, ubuntu, "x86_64", exists=True)] == ["warning"]
    assert [issue.level for issue in judge_clients(clients, ubuntu, "x86_64")] == ["error"]


def check(canned_aws: CannedAws, fetch: Any, *, exists: bool = False, **more: Any) -> list[str]:
    identity = Identity("123456789012", "arn:aws:iam::123456789012:user/ann")
    return format_issues(
        check_lustre_clients(Subject(spec(**more), canned_aws.account, identity, exists=exists), fetch)
    )


def test_only_clusters_with_lustre_and_default_images_are_checked(canned_aws: CannedAws) -> None:
    urls: list[str] = []

    def fetch(url: str) -> str:
        urls.append(url)
        return CLIENTS if "fsx" in url else UBUNTU

    assert check(canned_aws, fetch) == []
    named = {"region": "us-east-1", "ami": "ami-0123456789abcdef0", "plain_ami": "ami-0123456789abcdef0"}
    assert check(canned_aws, fetch, storage=LUSTRE, aws=named) == []
    assert urls == []
    assert len(check(canned_aws, fetch, storage=LUSTRE)) == 1
    assert [url.rpartition("/dists/")[2] for url in urls] == [
        "jammy/main/binary-amd64/Packages.gz",
        "jammy-updates/main/binary-amd64/Packages.gz",
    ]


def test_all_indexes_of_ubuntu_are_read_before_an_error(canned_aws: CannedAws) -> None:
    newest = index("linux-image-6.8.0-1045-aws", newest="6.8.0-1045-aws")
    indexes = {"jammy": "", "jammy-security": "", "jammy-updates": newest}

    def fetch(url: str) -> str:
        return CLIENTS if "fsx" in url else indexes[url.rpartition("/dists/")[2].partition("/")[0]]

    assert check(canned_aws, fetch, storage=LUSTRE)[0].startswith("error lustre_kernel")
    assert check(canned_aws, fetch, exists=True, storage=LUSTRE)[0].startswith("warning lustre_kernel")
    indexes["jammy-security"] = index("linux-image-6.8.0-1041-aws")
    (issue,) = check(canned_aws, fetch, storage=LUSTRE)
    assert issue.startswith("warning lustre_kernel")
    assert "nodes whose image has it install 6.8.0-1041-aws" in issue


def test_an_index_that_ends_too_early_is_a_warning(
    canned_aws: CannedAws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    path = tmp_path / "Packages.gz"
    path.write_bytes(gzip.compress(CLIENTS.encode())[:-12])
    (issue,) = check(canned_aws, lambda _: fetch_index(path.as_uri()), storage=LUSTRE)
    assert issue.startswith("warning lustre_clients_unknown")


@pytest.mark.parametrize("failure", [http.client.IncompleteRead(b""), zlib.error("invalid block")])
def test_a_damaged_download_is_a_warning(canned_aws: CannedAws, failure: Exception) -> None:
    def fetch(_: str) -> str:
        raise failure

    assert check(canned_aws, fetch, storage=LUSTRE)[0].startswith("warning lustre_clients_unknown")


def test_an_index_that_cannot_be_read_is_a_warning(canned_aws: CannedAws) -> None:
    def fetch(_: str) -> str:
        raise OSError("no route to host")

    assert check(canned_aws, fetch, storage=LUSTRE) == [
        "warning lustre_clients_unknown storage: clients for the images' kernels could not be checked (no route to "
        "host); fix: check the network of this machine; nodes look for a client themselves"
    ]


def test_an_index_is_downloaded_and_decompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "Packages.gz"
    path.write_bytes(gzip.compress(CLIENTS.encode()))
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    assert fetch_index(path.as_uri()) == CLIENTS
    # A stand-in for AWS has no repository, and those who use one want no traffic to AWS.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:5000")
    with pytest.raises(OSError, match=r"AWS is replaced by http://127\.0\.0\.1:5000"):
        fetch_index(path.as_uri())
