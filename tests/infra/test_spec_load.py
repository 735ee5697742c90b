"""Reading specs: exact messages for all errors at once, only SpecError for junk, and round trips for valid specs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.spec import ClusterSpec, SpecError
from infra.targets.registry import load_spec as load
from infra.targets.registry import parse_spec
from infra.targets.registry import read_spec as read
from tests.infra.bad_spec_table import BadSpec, read_table, valid_spec

TABLE = read_table("test_spec_bad.yaml")


@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.title)
def test_bad_spec(bad: BadSpec) -> None:
    with pytest.raises(SpecError) as caught:
        load(bad.data)
    assert str(caught.value) == bad.expected_text
    assert [issue.code for issue in caught.value.issues] == bad.codes


def test_all_errors_are_reported_at_once() -> None:
    everything = {"nmae": "x", "target": "moon", "groups": {"GPU": {"count": "two"}}, "login": 5, "tags": {"a": 1}}
    with pytest.raises(SpecError) as caught:
        load(everything)
    assert [issue.where for issue in caught.value.issues] == [
        "target",
        "groups.GPU",
        "groups.GPU.count",
        "login",
        "tags.a",
        "nmae",
    ]
    assert str(caught.value).endswith("\n6 errors")


def test_misspelt_key_is_not_reported_as_missing() -> None:
    with pytest.raises(SpecError) as caught:
        load({"nmae": "x", "target": "local", "grups": {"gpu": {"count": 2}}})
    assert {issue.where: issue.fix for issue in caught.value.issues} == {
        "nmae": "rename it to `name`",
        "grups": "rename it to `groups`",
    }


def test_key_at_the_top_is_moved_to_the_section_of_the_target() -> None:
    with pytest.raises(SpecError) as caught:
        load({"name": "x", "target": "aws", "groups": {"gpu": {"count": 2}}, "region": "us-east-1"})
    assert {issue.where: issue.fix for issue in caught.value.issues} == {
        "region": "move it to `aws.region`, or remove it"
    }


@pytest.mark.parametrize("junk", [None, 5, "text", [], ["a"], True, 1.5])
def test_not_a_mapping(junk: object) -> None:
    with pytest.raises(SpecError) as caught:
        load(junk)
    assert [(issue.where, issue.code) for issue in caught.value.issues] == [("muster:cluster", "wrong_type")]


def test_private_key_is_not_repeated() -> None:
    key = "-----BEGIN OPENSSH PRIVATE KEY-----b3BlbnNzaC1rZXk"
    with pytest.raises(SpecError) as caught:
        load({**valid_spec(), "users": {"alice": {"uid": 2001, "ssh_keys": key}}})
    assert "b3Blb" not in str(caught.value)
    assert "a private key is not a list of text" in str(caught.value)


def test_recursive_structure_is_an_error() -> None:
    data = valid_spec()
    data["groups"]["gpu"]["size"] = data["groups"]
    with pytest.raises(SpecError):
        load(data)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3),
    max_leaves=8,
)
FIELD_NAMES = st.sampled_from(sorted(ClusterSpec.model_fields))


@given(st.dictionaries(FIELD_NAMES | st.text(max_size=8) | st.integers(), JUNK, max_size=6))
def test_junk_is_an_error_with_message_and_fix(data: dict[object, object]) -> None:
    with pytest.raises(SpecError) as caught:
        load(data)
    assert all(issue.where and issue.message and issue.fix for issue in caught.value.issues)


@given(st.dictionaries(FIELD_NAMES, JUNK, max_size=4))
def test_junk_in_a_valid_spec_raises_only_spec_error(patch: dict[str, object]) -> None:
    try:
        load({**valid_spec(), **patch})
    except SpecError as error:
        assert error.issues  # noqa: PT017  # whether there is an error depends on the values


names = st.from_regex(r"\A[a-z]([a-z0-9-]{0,18}[a-z0-9])?\Z")
text = st.text(st.characters(codec="utf-8"), max_size=20)
specs = st.fixed_dictionaries(
    {
        "name": names,
        "target": st.sampled_from(["local", "aws"]),
        "groups": st.dictionaries(
            names,
            st.fixed_dictionaries(
                {"count": st.integers(0, 1024)},
                optional={
                    "fabric": st.sampled_from(["tcp", "efa", "infiniband", "roce"]),
                    "size": st.fixed_dictionaries({"cpus": st.integers(1, 512)}),
                    "gpus": st.fixed_dictionaries({"count": st.integers(0, 16), "type": names}),
                },
            ),
            min_size=1,
            max_size=3,
        ),
    },
    optional={
        "users": st.dictionaries(
            names,
            st.fixed_dictionaries({"uid": st.integers(1000, 60000), "ssh_keys": st.lists(text, max_size=2)}),
            min_size=1,
            max_size=3,
        ),
        "tags": st.dictionaries(text, text, max_size=3),
        "budget": st.fixed_dictionaries({"usd_total": st.floats(0.01, 1e9) | st.integers(1, 10**6)}),
    },
)


@given(specs)
def test_valid_specs_survive_a_round_trip_through_json(data: dict[str, object]) -> None:
    spec = load(data)
    assert parse_spec(spec.model_dump_json()) == spec
    assert load(spec.model_dump(mode="json")) == spec


def test_lists_are_read_as_tuples(tmp_path: Path) -> None:
    stack = tmp_path / "Pulumi.x.yaml"
    stack.write_text(
        "config:\n  muster:cluster:\n    name: x\n    target: local\n    groups: {a: {count: 1}}\n"
        "    users: {alice: {uid: 2001, ssh_keys: [one, two]}}\n"
    )
    assert read(stack).users["alice"].ssh_keys == ("one", "two")


def test_order_in_the_file_does_not_matter() -> None:
    """Pulumi sorts mappings by key before the program gets them; both orders must give the same cluster."""
    first = load({"name": "a", "target": "local", "groups": {"z": {"count": 1}, "b": {"count": 1}}})
    second = load({"name": "a", "target": "local", "groups": {"b": {"count": 1}, "z": {"count": 1}}})
    assert list(first.groups) == ["b", "z"]
    assert first.model_dump_json() == second.model_dump_json()


def test_only_the_first_hundred_errors_are_shown_and_the_others_counted() -> None:
    with pytest.raises(SpecError) as raised:
        load({"name": "x", "target": "local", "groups": {"a": {f"key-{number}": 1 for number in range(2000)}}})
    assert len(raised.value.issues) == 101
    assert raised.value.issues[-1].message == "1900 more errors"
