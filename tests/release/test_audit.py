"""The audit of locked packages: pip-audit itself, asking a server on loopback in place of osv.dev."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

from release import audit, cves
from release.components import Component, list_components
from tests.release.osv_server import make_record, serve

TOY = [Component("pypi", "six", "1.17.0", ("a.lock",)), Component("pypi", "idna", "3.20", ("a.lock",))]


@pytest.fixture
def toy_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "list_components", lambda: TOY)
    monkeypatch.delenv("MUSTER_AUDIT", raising=False)


def run_audit(url: str, monkeypatch: pytest.MonkeyPatch, *, required: bool = False) -> int:
    monkeypatch.setenv("MUSTER_OSV_URL", url)
    return audit.main(required=required)


def test_every_locked_version_is_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    packages = {(part.name, part.version) for part in list_components() if part.kind == "pypi"}
    with serve({}) as (url, queries):
        assert run_audit(url, monkeypatch) == 0
    assert set(queries) == packages
    assert capsys.readouterr().out == f"{len(packages)} packages, no known vulnerability\n"


@pytest.mark.usefixtures("toy_locks")
def test_a_vulnerable_package_fails_with_its_number_and_the_fixed_version_unless_it_is_accepted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "read_accepted", lambda: {"CVE-2099-0003": "not reachable from our code"})
    records = {
        "idna": [make_record("idna", 1, ""), make_record("idna", 3, "4.0")],
        "six": [make_record("six", 2, "2.0.0")],
    }
    with serve(records) as (url, _):
        assert run_audit(url, monkeypatch) == 1
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "idna 3.20: CVE-2099-0001, GHSA-test-0000-0001; fixed in no version yet",
        "six 1.17.0: CVE-2099-0002, GHSA-test-0000-0002; fixed in 2.0.0",
    ]


@pytest.mark.usefixtures("toy_locks")
@pytest.mark.parametrize(
    ("variable", "required", "code"), [("", False, os.EX_TEMPFAIL), ("required", False, 1), ("", True, 1)]
)
def test_a_database_that_does_not_answer_is_reported_and_fails_where_the_audit_is_required(
    variable: str, required: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_AUDIT", variable)
    with serve({}) as (url, _):
        pass
    assert run_audit(url, monkeypatch, required=required) == code
    assert f"pip-audit did not run: {url} does not answer (" in capsys.readouterr().out


@pytest.mark.usefixtures("toy_locks")
def test_a_database_that_fails_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve({}, status=500) as (url, _):
        assert run_audit(url, monkeypatch) == 1
    assert capsys.readouterr().out.startswith("pip-audit failed: ")


@pytest.mark.usefixtures("toy_locks")
def test_a_connection_that_breaks_during_the_audit_is_no_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve({}, status=0) as (url, _):
        assert run_audit(url, monkeypatch) == os.EX_TEMPFAIL
    assert capsys.readouterr().out.startswith("pip-audit did not run to the end: ")


@pytest.mark.usefixtures("toy_locks")
def test_a_connection_that_breaks_is_a_failure_where_the_audit_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(*_: object) -> NoReturn:
        raise audit.ConnectionFailedError("reset by peer")

    monkeypatch.setattr(audit, "_run_pip_audit", break_off)
    with serve({}) as (url, _):
        assert run_audit(url, monkeypatch, required=True) == 1


@pytest.mark.parametrize(("probe", "usable"), [(200, True), (404, True), (405, True), (403, False), (502, False)])
def test_a_proxy_that_answers_in_place_of_the_database_is_an_obstacle(probe: int, usable: bool) -> None:
    with serve({}, probe=probe) as (url, _):
        assert (audit.find_obstacle(url) == "") is usable


def test_the_findings_of_a_group_are_shown_if_another_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    packages = [Component("pypi", "six", version, ("a.lock",)) for version in ("1.16.0", "1.17.0")]

    def answer(_: str, group: list[Component]) -> dict[str, object]:
        if group[0].version == "1.16.0":
            raise audit.AuditError("no report")
        return {"dependencies": []}

    monkeypatch.setattr(audit, "list_components", lambda: packages)
    monkeypatch.setattr(audit, "_run_pip_audit", answer)
    with serve({}) as (url, _):
        assert run_audit(url, monkeypatch) == 1
    left_out = "six 1.17.0: not audited: pip-audit's report does not mention it"
    assert capsys.readouterr().out == f"pip-audit failed: no report\n{left_out}\n"


def test_a_package_that_is_left_out_is_a_problem() -> None:
    report = {"dependencies": [{"name": "six", "skip_reason": "no such version"}]}
    assert list(audit.find_problems(report)) == ["six: not audited: no such version"]


def test_several_versions_of_a_package_are_audited_in_several_runs() -> None:
    def part(name: str, version: str) -> Component:
        return Component("pypi", name, version, ())

    groups = audit.split_versions([part("a", "1"), part("a", "2"), part("b", "1"), part("a", "3")])
    assert groups == [[part("a", "1"), part("b", "1")], [part("a", "2")], [part("a", "3")]]


def test_accepted_vulnerabilities_have_a_reason() -> None:
    assert [name for name, reason in cves.read_accepted().items() if len(reason) < 20] == []
