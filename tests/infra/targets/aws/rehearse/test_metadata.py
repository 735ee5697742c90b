"""The metadata service of a rehearsal: it tells when a machine has booted so far that it reads its user data."""

from __future__ import annotations

import urllib.error
import urllib.request
from http import HTTPStatus
from types import SimpleNamespace

import pytest

from infra.targets.aws.rehearse.instance import Instance
from infra.targets.aws.rehearse.metadata import TOKEN_PATH, Metadata, serve_metadata


def test_the_boot_of_a_container_ends_when_it_first_reads_its_user_data() -> None:
    instance = Instance(SimpleNamespace(), "role", started_at=0.0)
    machine = Metadata("i-1", "127.0.0.1", 0, {}, "#!/bin/sh", "role", "", on_user_data=instance.read_user_data)
    with serve_metadata("127.0.0.1", lambda _address: machine) as port:
        base = f"http://127.0.0.1:{port}"
        token = _read(base + TOKEN_PATH, {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
        headers = {"X-aws-ec2-metadata-token": token}
        assert _read(f"{base}/latest/meta-data/instance-id", headers) == "i-1"
        assert instance.container_boot_s == 0
        assert _read(f"{base}/latest/user-data", headers) == "#!/bin/sh"
        booted_s = instance.container_boot_s
        assert booted_s > 0
        _read(f"{base}/latest/user-data", headers)
        assert instance.container_boot_s == booted_s


def test_a_request_without_a_valid_token_is_refused() -> None:
    machine = Metadata("i-1", "127.0.0.1", 0, {}, "#!/bin/sh", "role", "ASIA1")
    with serve_metadata("127.0.0.1", lambda _address: machine) as port:
        base = f"http://127.0.0.1:{port}"
        for path in ("meta-data/instance-id", "meta-data/iam/security-credentials/role", "user-data"):
            for headers in ({}, {"X-aws-ec2-metadata-token": "guessed"}):
                assert _read_status(f"{base}/latest/{path}", headers) == HTTPStatus.UNAUTHORIZED
        # IMDSv2 wants a lifetime for each token.
        assert _read_status(base + TOKEN_PATH, {}, "PUT") == HTTPStatus.BAD_REQUEST


def _read_status(url: str, headers: dict[str, str], method: str = "GET") -> int:
    with pytest.raises(urllib.error.HTTPError) as caught:
        _read(url, headers, method)
    caught.value.close()
    return caught.value.code


def _read(url: str, headers: dict[str, str], method: str = "GET") -> str:
    request = urllib.request.Request(url, headers=headers, method=method)  # noqa: S310  # the service above
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310  # the service above
        return str(answer.read().decode())
