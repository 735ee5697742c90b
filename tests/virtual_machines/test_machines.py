"""Virtual machines of tests: the identity of a copy, and the folder that holds their disks."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.virtual_machines.machines import open_folder, render_identity


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
