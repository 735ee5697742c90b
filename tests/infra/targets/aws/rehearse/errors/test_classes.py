"""Codes of a class have the same effect: AWS's library, the tables, and muster's code do not distinguish them."""

from __future__ import annotations

import ast
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError

from infra.targets.aws.client import create_client
from infra.targets.aws.launcher.error_codes import classify_code
from infra.targets.aws.refusals import explain_refusal
from infra.targets.aws.rehearse.errors.call_sites import read_sites
from infra.targets.aws.rehearse.errors.classes import NAMED, group_codes, order_by_class
from infra.targets.aws.rehearse.errors.share import ALL_CODES, SAMPLE
from infra.targets.aws.rehearse.moto_errors import render_error

REPO = Path(__file__).resolve().parents[6]
ROOMS = ("bootstrap", "cluster", "infra", "muster", "slurm")
# The tables of kinds and of fixes are compared by what they answer; rehearsals inject errors and handle none.
TABLES = ("launcher/error_codes.py", "aws/refusals.py")
REHEARSALS = "rehearse"
# A call of a service for each format of errors.
CALLS = {"ec2": "describe_vpcs", "s3": "list_buckets", "iam": "list_roles", "ssm": "describe_parameters"}


class Body:
    """The body of an answer, as AWS's library reads it."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def stream(self, **_: object) -> Iterator[bytes]:
        yield self.content


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    return {service: create_client(service, "us-east-1", attempts=2) for service in CALLS}


def count_attempts(client: Any, service: str, code: str) -> int:
    """Return how often AWS's library makes a call whose answers have this code."""
    status, headers, content = render_error(service, code)
    requests: list[str] = []

    def answer(request: Any, **_: object) -> AWSResponse:
        requests.append(request.url)
        return AWSResponse(request.url, int(status.split()[0]), dict(headers), Body(content))

    client.meta.events.register("before-send", answer, unique_id="answer")
    with pytest.raises(ClientError) as caught:
        getattr(client, CALLS[service])()
    client.meta.events.unregister("before-send", unique_id="answer")
    assert caught.value.response["Error"]["Code"] == code
    return len(requests)


def test_every_code_is_in_one_class() -> None:
    assert sorted(code for names in group_codes(ALL_CODES) for code in names) == sorted(ALL_CODES)


def test_the_library_repeats_calls_after_all_codes_of_a_class_or_after_none(clients: dict[str, Any]) -> None:
    for names in group_codes(ALL_CODES):
        attempts = {code: [count_attempts(clients[service], service, code) for service in CALLS] for code in names}
        assert len({tuple(counts) for counts in attempts.values()}) == 1, attempts


def test_the_codes_of_a_class_have_one_kind_and_one_fix() -> None:
    for names in group_codes(ALL_CODES):
        messages = [f"operation error EC2: RunInstances, api error {code}: no" for code in names]
        assert (
            len({(classify_code(code), explain_refusal(m, "up")) for code, m in zip(names, messages, strict=True)}) == 1
        )


def test_code_that_names_a_code_names_all_codes_of_its_class_there() -> None:
    """Any other condition on a code, such as a part of it, is on codes that no rehearsal injects."""
    places: dict[str, set[str]] = defaultdict(set)
    for room in ROOMS:
        for path in (REPO / room).rglob("*.py"):
            if path.as_posix().endswith(TABLES) or REHEARSALS in path.parts:
                continue
            tree = ast.parse(path.read_text())
            for container in ast.walk(tree):
                for node in ast.iter_child_nodes(container):
                    if isinstance(node, ast.Constant) and node.value in ALL_CODES:
                        places[str(node.value)].add(f"{path.relative_to(REPO)}:{container.__dict__.get('lineno')}")
    together: dict[frozenset[str], set[str]] = defaultdict(set)
    for code, lines in places.items():
        together[frozenset(lines)].add(code)
    assert {frozenset(codes) for codes in together.values()} == set(NAMED)


def test_the_document_has_the_number_of_classes() -> None:
    text = " ".join((REPO / "docs" / "aws.md").read_text().split())
    pairs = sum(map(len, read_sites().values())) * len(SAMPLE)
    assert f"The {len(ALL_CODES)} codes form {len(SAMPLE)} classes" in text
    assert f"which is {pairs:,} pairs instead of" in text


def test_a_sample_has_one_code_of_each_class() -> None:
    classes = group_codes(ALL_CODES)
    assert [[code for code in SAMPLE if code in names] for names in classes] == [[names[0]] for names in classes]


def test_codes_come_in_rounds_of_one_of_each_class() -> None:
    rounds = order_by_class(ALL_CODES)
    assert set(rounds[0]) == set(SAMPLE)
    assert sorted(code for names in rounds for code in names) == sorted(ALL_CODES)
    assert order_by_class(()) == ()
