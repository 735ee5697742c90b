"""A run on remote shards is the run on local ones, also when only a few shards are read at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.launch import SMALL_LLAMA, digests
from tests.trainer.token_shards import write_shards
from tests.trainer.web_folder import serve
from trainer.__main__ import main
from trainer.life.outcome import Code


@pytest.mark.parametrize("window", [0, 2])
def test_a_run_on_remote_shards_is_the_run_on_local_ones(tmp_path: Path, window: int) -> None:
    write_shards(tmp_path / "data", *(range(n, n + 97) for n in range(4)))
    settings = [*SMALL_LLAMA, "data.kind=tokens", "batch.size=8", "parallel.strategy=single", "steps=4"]
    settings += [f"data.shuffle_shards={window}"]
    local, remote = tmp_path / "local", tmp_path / "remote"
    assert main([*settings, f"data.path={tmp_path / 'data'}", f"run.folder={local}"]) == Code.FINISHED
    with serve(tmp_path) as web:
        settings += [f"data.path={web.url}/data", f"data.cache={tmp_path / 'cache'}"]
        assert main([*settings, f"run.folder={remote}"]) == Code.FINISHED
        assert web.count(".bin") == 4
    assert digests(remote, 4) == digests(local, 4)
