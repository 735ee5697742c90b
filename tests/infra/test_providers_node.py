"""Creating a node while Docker still finishes the container of a run that was killed."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
from docker.errors import APIError
from requests import Response

from infra.targets.local.build import docker_node

NODE = {"Id": "created"}


def refusal(status: HTTPStatus) -> APIError:
    response = Response()
    response.status_code = status
    return APIError("refused", response=response)


@pytest.mark.parametrize("late", [None, {"Id": "finished by the engine"}])
def test_name_conflict_adopts_the_late_container_or_creates_again(
    monkeypatch: pytest.MonkeyPatch, late: dict[str, Any] | None
) -> None:
    answers: Iterator[Any] = iter([refusal(HTTPStatus.CONFLICT), NODE])

    def create(_api: object, _props: object) -> dict[str, Any]:
        answer = next(answers)
        if isinstance(answer, APIError):
            raise answer
        return dict(answer)

    monkeypatch.setattr(docker_node, "_create", create)
    monkeypatch.setattr(docker_node, "_adopt", lambda *_: late)
    assert docker_node._create_handling_conflict(object(), {}) == (late or NODE)


def test_other_docker_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(_api: object, _props: object) -> dict[str, Any]:
        raise refusal(HTTPStatus.INTERNAL_SERVER_ERROR)

    monkeypatch.setattr(docker_node, "_create", create)
    with pytest.raises(APIError):
        docker_node._create_handling_conflict(object(), {})
