"""A node whose name is taken by what the engine still finishes for a run that was killed."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
from docker.errors import APIError
from requests import Response

from infra.targets.local.build import docker_node

NODE = {"Id": "made"}


def refusal(status: HTTPStatus) -> APIError:
    response = Response()
    response.status_code = status
    return APIError("refused", response=response)


@pytest.mark.parametrize("late", [None, {"Id": "finished by the engine"}])
def test_a_name_that_was_taken_meanwhile_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, late: dict[str, Any] | None
) -> None:
    answers: Iterator[Any] = iter([refusal(HTTPStatus.CONFLICT), NODE])

    def make(_api: object, _props: object) -> dict[str, Any]:
        answer = next(answers)
        if isinstance(answer, APIError):
            raise answer
        return dict(answer)

    monkeypatch.setattr(docker_node, "_make", make)
    monkeypatch.setattr(docker_node, "_adopt", lambda *_: late)
    assert docker_node._make_in_spite_of_the_dead(object(), {}) == (late or NODE)


def test_any_other_refusal_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(_api: object, _props: object) -> dict[str, Any]:
        raise refusal(HTTPStatus.INTERNAL_SERVER_ERROR)

    monkeypatch.setattr(docker_node, "_make", make)
    with pytest.raises(APIError):
        docker_node._make_in_spite_of_the_dead(object(), {})
