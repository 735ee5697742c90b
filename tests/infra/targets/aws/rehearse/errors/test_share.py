"""The share of a rehearsal: which codes, in which order, and for how long."""

from __future__ import annotations

import time

import pytest

from infra.engine.stop import BAD_INPUT, Stop
from infra.targets.aws.launcher.error_codes import CODES
from infra.targets.aws.rehearse.errors.share import (
    ALL_CODES,
    SAMPLE,
    TRANSIENT,
    Share,
    begin_share,
    choose_codes,
    choose_commands,
)
from infra.targets.error_coverage import ErrorOptions


def test_every_code_of_the_table_but_those_of_absence_is_injected() -> None:
    assert set(ALL_CODES) == {code for kind, codes in CODES.items() if kind != "gone" for code in codes}
    assert [code in TRANSIENT for code in SAMPLE].count(True) == 1


def test_codes_are_chosen_by_name() -> None:
    assert choose_codes("all") == ALL_CODES
    assert choose_codes("sample") == SAMPLE
    assert choose_codes("AccessDenied, SlowDown,AccessDenied") == ("AccessDenied", "SlowDown")


@pytest.mark.parametrize("errors", ["Nonsense", "AccessDenied,Nonsense", "ParameterNotFound"])
def test_an_unknown_code_is_rejected_with_all_that_exist(errors: str) -> None:
    with pytest.raises(Stop) as caught:
        choose_codes(errors)
    assert f"--errors: '{errors.rpartition(',')[2]}' is not allowed; allowed: all, sample (" in caught.value.what
    assert all(code in caught.value.what for code in ALL_CODES)
    assert caught.value.code == BAD_INPUT


def test_commands_are_chosen_by_name_in_the_order_of_the_list() -> None:
    listed = ("check", "check (new)", "up")
    assert choose_commands("all", listed) == listed
    assert choose_commands("up, check (new)", listed) == ("check (new)", "up")


def test_an_unknown_command_is_rejected_with_all_that_exist() -> None:
    with pytest.raises(Stop, match=r"--commands: .down. is not allowed; allowed: all, or .*: check, up") as caught:
        choose_commands("up,down", ("check", "up"))
    assert caught.value.code == BAD_INPUT


def test_a_seed_draws_an_order_of_everything() -> None:
    orders = [Share((), seed).shuffle(range(20)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(20))


def test_a_share_ends_after_its_minutes() -> None:
    assert begin_share(ErrorOptions("all", minutes=0)).is_over
    assert not begin_share(ErrorOptions("all")).is_over
    assert not begin_share(ErrorOptions("all")).first_half.is_over
    now = time.monotonic()
    share = begin_share(ErrorOptions("all", minutes=10))
    assert share.ends_s - now == pytest.approx(600, abs=5)
    assert share.first_half.ends_s - now == pytest.approx(300, abs=5)
