"""Assert that the folder of a run explains why it ended: in outcome.json and in the report."""

from __future__ import annotations

import html
import socket
from pathlib import Path
from typing import Any

from tests.trainer.launch import outcome
from trainer.life.cause import Cause
from trainer.report.page import render_page
from trainer.report.run_folder import open_run
from trainer.report.summary import summarise

HOST = socket.gethostname()


def assert_first_cause(folder: Path, cause: Cause, rank: int | None, host: str = HOST) -> dict[str, Any]:
    """Assert that both name this cause, rank and host, and what to do; return the outcome.

    Without a rank, all ranks agreed on the end.
    """
    ended = outcome(folder)
    blamed, blamed_host = ended["failure"], None if rank is None else host
    assert (blamed["cause"], blamed["rank"], blamed["host"]) == (cause.value, rank, blamed_host), ended
    assert blamed["fix"] == cause.fix != ""
    run = open_run(folder)
    page = html.unescape(render_page(run, summarise(run), []))
    assert ended["reason"] in page
    if rank is not None:
        (first,) = run.failures
        assert (first.cause, first.rank, first.host) == (cause, rank, host)
        for cell in (str(rank), host, cause.label, blamed["error"], cause.fix):
            assert f">{cell}</td>" in page, f"{cell} is not in the report"
    return ended
