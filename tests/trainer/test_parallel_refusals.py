"""Settings that do not work with a model or a batch are rejected with a message that names a fix."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tests.trainer.ranks import RanksError, on_ranks
from trainer.config.check import check_own_model
from trainer.config.errors import ConfigError
from trainer.config.layout import Layout
from trainer.config.models import MixtralConfig, MlpConfig
from trainer.config.schema import Config, OptimizerConfig, ParallelConfig
from trainer.models.experts import Experts
from trainer.optimizers.optimizer import Optimizer
from trainer.parallel.apply import parallelize
from trainer.parallel.engine import Recipe, split_batch
from trainer.parallel.mesh import Mesh
from trainer.parallel.stages import check_micro_batches, compute_bounds, list_stages

COUNTS = {
    "1f1b": (
        3,
        "batch.micro: a pipeline of 4 ranks with schedule 1f1b cannot run 3 micro-batches; "
        "use a batch.micro that makes 4 or more, or parallel.schedule gpipe",
    ),
    "zero_bubble": (
        3,
        "batch.micro: a pipeline of 4 ranks with schedule zero_bubble cannot run 3 micro-batches; "
        "use a batch.micro that makes 4 or more, or parallel.schedule gpipe",
    ),
    "interleaved": (
        9,
        "batch.micro: a pipeline of 4 ranks with schedule interleaved cannot run 9 micro-batches; "
        "use a batch.micro that makes a multiple of 4",
    ),
}


def test_offload_without_a_gpu_is_rejected() -> None:
    recipe = Recipe(ParallelConfig(strategy="fsdp", offload=True))
    with pytest.raises(ConfigError, match=r"parallel.offload: true, but the device is cpu.*run.device to cuda"):
        parallelize(nn.Linear(1, 1), recipe, make_single_mesh())


def test_a_model_without_the_expected_parts_is_not_split() -> None:
    layout = Layout(tensor=2)
    mesh = make_single_mesh()
    mesh.layout = layout
    recipe = Recipe(ParallelConfig(strategy="single", tensor=2))
    with pytest.raises(ConfigError, match=r"parallel.tensor: 2, but Linear has no embed, layers, norm, head to split"):
        parallelize(nn.Linear(1, 1), recipe, mesh)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expert": 3}, "parallel.expert: 3 ranks do not divide 4 experts of OwnMixture; use one of 1, 2, 4"),
        ({"tensor": 5}, "parallel.tensor: 5, but parts of 2 of the 8 tokens of the vocabulary leave none for the last"),
        ({"tensor": 2}, "parallel.tensor: 2, but the experts of OwnMixture are not in a MixtureOfExperts called ffn"),
    ],
)
def test_an_own_model_that_cannot_be_split_like_this_is_rejected(options: dict[str, int], message: str) -> None:
    mesh = make_single_mesh()
    mesh.layout = Layout(**options)
    with pytest.raises(ConfigError) as caught:
        parallelize(OwnMixture(), Recipe(ParallelConfig(strategy="fsdp", **options)), mesh)
    assert str(caught.value).startswith(message)


def test_a_model_without_experts_cannot_spread_them() -> None:
    mesh = make_single_mesh()
    mesh.layout = Layout(expert=2)
    with pytest.raises(ConfigError, match=r"parallel.expert: 2, but Linear has no layer of .*Experts; set it to 1"):
        parallelize(nn.Linear(1, 1), Recipe(ParallelConfig(strategy="ddp", expert=2)), mesh)


def test_settings_of_own_models_are_not_judged_by_a_placeholder() -> None:
    parallel = ParallelConfig(strategy="fsdp", expert=2)
    assert check_own_model(Config(name="own", model=MlpConfig(), parallel=parallel)) == []


def test_int8_moments_of_rows_that_ranks_share_are_rejected() -> None:
    on_ranks("tests.trainer.test_parallel_refusals:make_int8_moments_of_split_rows", ranks=1)


def make_int8_moments_of_split_rows() -> None:
    axis = init_device_mesh("cpu", (1,))
    rows, columns = (distribute_tensor(torch.zeros(4, 4096), axis, [Shard(dim)]) for dim in (0, 1))
    config = OptimizerConfig(moments="int8")
    Optimizer([("whole", nn.Parameter(rows))], config)
    with pytest.raises(ConfigError, match=r"optimizer.moments: int8 stores blocks of a row.* share the rows of split"):
        Optimizer([("split", nn.Parameter(columns))], config)


@pytest.mark.parametrize("schedule", COUNTS)
def test_a_pipeline_rejects_micro_batches_it_cannot_run(schedule: str) -> None:
    count, message = COUNTS[schedule]
    with pytest.raises(ConfigError) as error:
        check_micro_batches(ParallelConfig(strategy="single", pipeline=4, schedule=schedule), count)
    assert str(error.value) == message


def test_a_batch_that_cannot_be_split_is_rejected() -> None:
    with pytest.raises(ValueError, match="6 samples cannot be split into micro-batches of 4"):
        split_batch({"inputs": torch.zeros(6)}, 4)


def test_stages_hold_every_layer_once_and_the_ends_hold_the_fewest() -> None:
    assert [compute_bounds(10, stage, 4) for stage in range(4)] == [(0, 2), (2, 5), (5, 8), (8, 10)]
    assert list_stages(ParallelConfig(pipeline=2, schedule="interleaved"), 1) == [1, 3]
    with pytest.raises(ConfigError, match=r"parallel.pipeline: 4 stages need at least 4 layers, the model has 3"):
        compute_bounds(3, 0, 4)


def test_a_failing_rank_shows_its_traceback_and_the_next_call_gets_new_ranks() -> None:
    with pytest.raises(RanksError, match=r"rank 1: Traceback[\s\S]*ZeroDivisionError"):
        on_ranks("tests.trainer.test_parallel_refusals:fail_on_rank_1", ranks=2)
    assert on_ranks("tests.trainer.test_parallel_refusals:world", ranks=2) == [2, 2]


def fail_on_rank_1() -> float:
    return 1 / (1 - torch.distributed.get_rank())


def world() -> int:
    return torch.distributed.get_world_size()


class OwnMixture(nn.Module):
    """A model of a user with the parts that are split by name, and experts."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.layers = nn.ModuleDict({"0": Experts(MixtralConfig(dim=8, ffn=8, experts=4))})


def make_single_mesh() -> Mesh:
    return Mesh(Layout(), 0, torch.device("cpu"), uses_fully_shard=False)
