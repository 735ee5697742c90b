"""The network of virtual machines: several tests on one machine use ranges of their own."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.virtual_machines.machines import open_folder, render_identity
from tests.virtual_machines.network import RANGES, Network, choose_range, name_link


def test_a_free_range_is_chosen() -> None:
    first, second = RANGES[:2]
    assert choose_range({"lo", "eth0"}) == first
    assert choose_range({"lo", name_link(first)}) == second


def test_names_of_devices_are_short_enough_and_differ() -> None:
    names = [name_link(addresses) for addresses in RANGES]
    assert len(set(names)) == len(names)
    # IFNAMSIZ of Linux, less the byte at the end.
    assert max(map(len, names)) <= 15


def test_machines_have_addresses_by_their_numbers() -> None:
    assert str(Network(1, RANGES[7]).address(3)) == "10.177.7.3/24"


def test_a_copy_is_told_who_it_is_and_whom_it_lets_in() -> None:
    identity, keys = render_identity("head", "10.177.0.1/24", "52:54:00:00:00:01", "ssh-ed25519 AAAA me")
    name, address, mac, seconds, random = identity.split(" ")
    assert (name, address, mac) == ("head", "10.177.0.1/24", "52:54:00:00:00:01")
    assert seconds.isdigit()
    assert random != render_identity("head", "", "", "")[0].split(" ")[-1]
    assert base64.b64decode(keys) == b"ssh-ed25519 AAAA me\n"


def test_what_a_killed_test_has_left_is_removed_and_what_others_use_is_not(tmp_path: Path) -> None:
    with open_folder(tmp_path) as used:
        left = tmp_path / f"{used.name}-left"
        left.mkdir()
        (left / "lock").touch()
        new = tmp_path / f"{used.name}-new"
        new.mkdir()
        with open_folder(tmp_path) as other:
            assert {*tmp_path.iterdir()} == {used, new, other}
    assert {*tmp_path.iterdir()} == {new}
