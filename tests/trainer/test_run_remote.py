"""A run on remote shards is the run on local ones, also when only a few shards are read at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.launch import SMALL_LLAMA, digests
from tests.trainer.phase_limits import record_limits
from tests.trainer.token_shards import write_shards
from tests.trainer.web_folder import serve
from trainer.__main__ import main
from trainer.life.hang_limit import REMOTE_BATCH_S
from trainer.life.outcome import Code


@pytest.mark.parametrize("window", [0, 2])
def test_a_run_on_remote_shards_is_the_run_on_local_ones(
    tmp_path: Path, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path / "data", *(range(n, n + 97) for n in range(4)))
    settings = [*SMALL_LLAMA, "data.kind=tokens", "batch.size=8", "parallel.strategy=single", "steps=4"]
    settings += [f"data.shuffle_shards={window}", "evaluation.share=0.4", "evaluation.every=2"]
    local, remote = tmp_path / "local", tmp_path / "remote"
    limits = record_limits(monkeypatch)
    assert main([*settings, f"data.path={tmp_path / 'data'}", f"run.folder={local}"]) == Code.FINISHED
    assert (None in limits["data"], REMOTE_BATCH_S in limits["data"]) == (True, False)
    assert None in limits["evaluation"]
    limits.clear()
    with serve(tmp_path) as web:
        settings += [f"data.path={web.url}/data", f"data.cache={tmp_path / 'cache'}"]
        assert main([*settings, f"run.folder={remote}"]) == Code.FINISHED
        assert web.count(".bin") == 4
    # The retries of a download are longer than a step may take.
    assert (set(limits["data"]), set(limits["evaluation"])) == ({REMOTE_BATCH_S}, {REMOTE_BATCH_S})
    assert digests(remote, 4) == digests(local, 4)
