"""Rules about `health.replay_every`: which settings a replay on another rank cannot work with."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.config.errors import ConfigProblem
from trainer.config.schema import Config


def check_replay(config: Config) -> Iterator[ConfigProblem]:
    """Check that another rank can repeat a step with the same bits, and that there is something to go back to."""
    every = config.health.replay_every
    if not every:
        return
    off = "or health.replay_every to 0"
    for axis in ("tensor", "context", "expert", "pipeline"):
        ranks = getattr(config.parallel, axis)
        if ranks > 1:
            message = (
                f"{ranks}, but a replay needs ranks that compute whole samples alone (health.replay_every={every})"
            )
            yield ConfigProblem(f"parallel.{axis}", message, f"set it to 1, {off}")
    if config.communication.compression != "none":
        message = f"{config.communication.compression}, but a replay would change what compressed gradients leave over "
        message += f"(health.replay_every={every})"
        yield ConfigProblem("communication.compression", message, f"set it to none, {off}")
    if config.compile.cuda_graph:
        message = f"true, but gradients inside a CUDA graph cannot be compared (health.replay_every={every})"
        yield ConfigProblem("compile.cuda_graph", message, f"set it to false, {off}")
    if config.checkpoint.every == "never":
        message = f"never, but a corrupted run goes back to a checkpoint (health.replay_every={every})"
        yield ConfigProblem("checkpoint.every", message, f"set it to a number, {off}")
    if config.run.device == "cuda" and not config.run.deterministic:
        message = f"false, but kernels of a GPU may then differ in the last bit (health.replay_every={every})"
        yield ConfigProblem("run.deterministic", message, f"set it to true, {off}")
