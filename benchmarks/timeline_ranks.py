"""A node of benchmarks.timelines, which starts it: train with torchrun, and draw a profiled step; needs torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.node_link import limit_link, wait_for_first_node
from trainer.report.picture import draw_picture
from trainer.report.run_folder import open_run
from trainer.report.timeline import draw_timeline

OUT = Path("/out")
NODES, PORT = 2, 29_800
TEXT, GRID = "#6e7781", "#afb8c1"
MODEL = ("model.dim=256", "model.ffn=768", "model.layers=4", "model.heads=4", "model.kv_heads=4", "model.seq_len=128",
         "model.vocab_size=512", "batch.micro=8", "parallel.bucket_mb=4")  # fmt: skip
# The tenth step of a start is profiled.
RUN = ("steps=12", "checkpoint.every=never", "metrics.profile_every=100", "metrics.tensorboard=false", "run.device=cpu",
       "parallel.engine=muster", f"run.folder={OUT}/run")  # fmt: skip


def main(strategy: str, ranks: int, mbit: int) -> int:
    """Train on this node with `ranks` ranks; the first node draws the picture."""
    node = int(os.environ["NODE"])
    wait_for_first_node()
    limit_link(mbit)
    settings = [*MODEL, *RUN, f"batch.size={8 * NODES * ranks}", f"parallel.strategy={strategy}"]
    settings += ["parallel.shard=2"] if strategy == "hsdp" else []
    torchrun = ["--nnodes", str(NODES), "--node-rank", str(node), "--nproc-per-node", str(ranks)]
    torchrun += ["--master-addr", os.environ["MASTER_ADDR"], "--master-port", str(PORT)]
    command = [sys.executable, "-m", "torch.distributed.run", *torchrun, "-m", "trainer", "tiny-llama", *settings]
    status = subprocess.run(command, check=False).returncode
    if status or node:
        return status
    run = open_run(OUT / "run")
    picture = draw_picture("timeline", "Timeline of a step", lambda figure: draw_timeline(figure, run))
    if picture is None:
        return 1
    (OUT / "timeline.svg").write_text(fix_colours(picture.svg))
    return 0


def fix_colours(svg: str) -> str:
    """Replace the colours that a report's page defines by some that can be read on white and on black."""
    return svg.replace("currentColor", TEXT).replace("var(--grid)", GRID)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
