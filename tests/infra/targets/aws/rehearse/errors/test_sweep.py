"""The removal of leftovers with errors: what it repeats, what it names, and what it does neither with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from infra.resources.error import ResourceError
from infra.targets.aws.rehearse.errors import operation_runs
from infra.targets.aws.rehearse.errors.coverage import Coverage
from infra.targets.aws.rehearse.errors.operation_runs import SWEEP, Barrage, cover_sweep
from infra.targets.aws.rehearse.errors.operations import Subject
from infra.targets.aws.rehearse.errors.pair import Outcome, Pair
from infra.targets.aws.rehearse.errors.share import Share
from infra.targets.aws.rehearse.moto_server import Moto

SITE = "ec2 DeleteVpc"
CODES = ("SlowDown", "AccessDenied")


class Account:
    """An account with a leftover, whose removal repeats its call after every error, or only after those that pass."""

    region = "us-east-1"

    def __init__(self, *, repeats_all: bool) -> None:
        self.repeats_all, self.left, self.errors = repeats_all, ["vpc-1"], Barrage(lambda _site: ())
        self.moto = Moto()

    @contextmanager
    def interfere(self, errors: Barrage) -> Iterator[None]:
        self.errors = errors
        yield

    def find(self, *_: object) -> SimpleNamespace:
        return SimpleNamespace(resources=list(self.left))

    def remove(self, *_: object, **__: object) -> None:
        while code := self.errors("ec2", "DeleteVpc", {}):
            if code not in CODES[:1] and not self.repeats_all:
                raise ResourceError("", f"AWS refused to remove it: {code}", "fix it")
        self.left.clear()


def sweep(monkeypatch: pytest.MonkeyPatch, *, repeats_all: bool) -> dict[Pair, Outcome]:
    account, coverage = Account(repeats_all=repeats_all), Coverage({SWEEP: (SITE,)})
    monkeypatch.setattr(operation_runs, "find_leftovers", account.find)
    monkeypatch.setattr(operation_runs, "remove_leftover", account.remove)
    subject = SimpleNamespace(cluster=account, deployment=SimpleNamespace(cluster="demo"))
    cover_sweep(cast(Subject, subject), coverage, Share(CODES))
    assert coverage.problems == []
    return coverage.outcomes


def test_errors_that_pass_are_retried_and_others_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = sweep(monkeypatch, repeats_all=False)
    assert outcomes == {Pair(SWEEP, SITE, "SlowDown"): "retried", Pair(SWEEP, SITE, "AccessDenied"): "explained"}


def test_an_error_that_stays_and_is_not_named_is_not_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sweep(monkeypatch, repeats_all=True) == {Pair(SWEEP, SITE, "SlowDown"): "retried"}
