"""The DNS server: real queries of a resolver, and malformed ones."""

from __future__ import annotations

import socket
import struct

import pytest

from infra.targets.aws.rehearse.dns import answer_query, serve_names

ADDRESSES = {"controller.pair.muster.internal": "10.96.0.7"}
A, AAAA = 1, 28


def ask(name: str, kind: int = A) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", 0x1234, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


def read(answer: bytes) -> tuple[int, int, int]:
    """Return id, error code and number of answers."""
    id_, flags, _, answers, *_ = struct.unpack_from(">HHHHHH", answer)
    return id_, flags & 0xF, answers


def test_a_name_resolves_to_its_address() -> None:
    answer = answer_query(ask("Controller.Pair.muster.internal"), ADDRESSES.get)
    assert read(answer) == (0x1234, 0, 1)
    assert answer[-4:] == bytes([10, 96, 0, 7])


def test_an_unknown_name_does_not_exist() -> None:
    assert read(answer_query(ask("gpu-1.pair.muster.internal"), ADDRESSES.get)) == (0x1234, 3, 0)


def test_a_name_has_no_address_of_another_family() -> None:
    """An error would make resolvers give up before they ask for the IPv4 address."""
    assert read(answer_query(ask("controller.pair.muster.internal", AAAA), ADDRESSES.get)) == (0x1234, 0, 0)


@pytest.mark.parametrize("query", [b"", b"\x12\x34", ask("a.b")[:-3], ask("a.b")[:14], b"\xff" * 40])
def test_a_malformed_query_is_an_error_and_not_an_exception(query: bytes) -> None:
    assert read(answer_query(query, ADDRESSES.get))[1] in (1, 3)


def test_the_server_answers_over_the_network() -> None:
    with serve_names("127.0.0.1", ADDRESSES.get) as port, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(5)
        client.sendto(ask("controller.pair.muster.internal"), ("127.0.0.1", port))
        assert read(client.recv(512)) == (0x1234, 0, 1)
