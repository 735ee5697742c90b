"""The models: their sizes, initial weights and pipeline stages; all of them learn and compile."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.trainer.ranks import on_ranks
from trainer.config.load import list_presets, load
from trainer.config.models import (
    DecoderConfig,
    Gpt2Config,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    MlpConfig,
    MoeConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    ResNetConfig,
)
from trainer.models import attention
from trainer.models.attention import attend
from trainer.models.functional import compute_loss
from trainer.models.init import fill
from trainer.models.registry import build_model
from trainer.models.rotary import rotary_table, rotate, scale_frequencies
from trainer.models.shape import shape_of

SIZES: dict[str, Any] = {"vocab_size": 61, "dim": 32, "layers": 3, "heads": 4, "kv_heads": 2, "ffn": 48, "seq_len": 16}
LLAMA = LlamaConfig(**SIZES)
MISTRAL = MistralConfig(**SIZES, window=5)
QWEN2 = Qwen2Config(**SIZES)
QWEN3 = Qwen3Config(**SIZES, head_dim=16)
GPT2 = Gpt2Config(vocab_size=61, dim=32, layers=3, heads=4, seq_len=16)
MIXTRAL = MixtralConfig(**SIZES, experts=6)
QWEN3_MOE = Qwen3MoeConfig(**SIZES, head_dim=16, experts=8, top_k=3)
DENSE: dict[str, Any] = {"llama": LLAMA, "mistral": MISTRAL, "qwen2": QWEN2, "qwen3": QWEN3, "gpt2": GPT2}
DECODERS: dict[str, Any] = {**DENSE, "mixtral": MIXTRAL, "qwen3_moe": QWEN3_MOE}
RESNET = ResNetConfig(depth=50, width=4, classes=5, image_size=32)
MODELS: dict[str, Any] = {
    **DECODERS,
    "llama tied": replace(LLAMA, tie_embeddings=True),
    "gpt2 untied": replace(GPT2, tie_embeddings=False),
    "resnet18": replace(RESNET, depth=18),
    "resnet50": RESNET,
    "mlp": MlpConfig(inputs=12, hidden=(16, 16), classes=5),
    "mlp without hidden layers": MlpConfig(inputs=12, hidden=(), classes=5),
}
every_model = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
every_decoder = pytest.mark.parametrize("config", DECODERS.values(), ids=DECODERS)


def test_shapes_of_the_presets_match_the_models() -> None:
    sizes = {}
    for name in list_presets():
        config = load(name, []).model
        with torch.device("meta"):
            sizes[name] = sum(parameter.numel() for parameter in build_model(config).parameters())
        assert shape_of(config).params == sizes[name]
    # The published sizes of Llama 3, Mistral, Qwen, torchvision and GPT-2, whose vocabulary is padded here.
    assert sizes["llama-8b"] == sizes["llama3.1-8b"] == 8_030_261_248
    assert sizes["llama3.2-1b"] == 1_235_814_400
    assert sizes["mistral-7b"] == 7_241_732_096
    assert sizes["qwen2.5-7b"] == 7_615_616_512
    assert sizes["qwen3-0.6b"] == 596_049_920
    assert sizes["qwen3-8b"] == 8_190_735_360
    assert sizes["qwen3-32b"] == 32_762_123_264
    assert sizes["mixtral-8x7b"] == 46_702_792_704
    assert sizes["qwen3-30b-a3b"] == 30_532_122_624
    assert sizes["llama-70b"] == 70_553_706_496
    assert sizes["resnet50"] == 25_557_032
    assert sizes["resnet18"] == 11_689_512
    assert sizes["gpt2-124m"] == 124_439_808 + (50304 - 50257) * 768
    assert all(size < 300_000 for name, size in sizes.items() if name.startswith("tiny"))


def test_family_without_a_branch_is_an_error() -> None:
    forgotten: Any = object()
    for function in (build_model, shape_of):
        with pytest.raises(AssertionError, match="Expected code to be unreachable"):
            function(forgotten)


@every_model
def test_shapes_count_the_operations_that_torch_counts(config: Any) -> None:
    shape = shape_of(config)
    model = make_model(config)
    assert shape.params == sum(parameter.numel() for parameter in model.parameters())
    inputs, _ = make_batch(config, 2)
    # Attention uses plain matrix products, because torch 2.11 does not count the fused kernel of the CPU.
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model(inputs)
    forward = shape.flops_per_sample() / 3 * 2
    # torch does not count norms and biases.
    assert counter.get_total_flops() == pytest.approx(forward, rel=0.05)


def test_shapes_match_published_costs() -> None:
    """NVIDIA's recipes have 4.74e14 for a sequence of 8,192 tokens; ResNet-50 has 4.1 G multiply-adds."""
    assert shape_of(load("llama-8b", []).model).flops_per_sample() == pytest.approx(4.74e14, rel=0.001)
    assert shape_of(load("resnet50", []).model).products == pytest.approx(4.09e9, rel=0.005)
    shape = shape_of(load("llama-1b", []).model)
    assert shape.flops_per_sample() / 4096 * 61_679 == pytest.approx(556e12, rel=0.002)


@every_model
def test_initial_weights_depend_only_on_seed_and_name(config: Any) -> None:
    whole, again, other = make_model(config), make_model(config), make_model(config, seed=2)
    for name, parameter in whole.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name))
    assert any(not torch.equal(value, other.get_parameter(name)) for name, value in whole.named_parameters())
    # Outputs start small, so the first loss is that of a uniform guess.
    inputs, targets = make_batch(config, 16)
    classes = getattr(config, "classes", 61)
    if not isinstance(config, MlpConfig):
        assert compute_loss(whole(inputs), targets).item() == pytest.approx(math.log(classes), rel=0.1)


@every_decoder
def test_initial_weights_have_the_expected_scale(config: Any) -> None:
    model = make_model(replace(config, dim=128))
    deviation = {name: value.std().item() for name, value in model.named_parameters()}
    assert deviation["layers.1.attention.q.weight"] == pytest.approx(0.02, rel=0.05)
    down = "layers.1.ffn.experts.down.weight" if isinstance(config, MoeConfig) else "layers.1.ffn.down.weight"
    assert deviation[down] == pytest.approx(0.02 / math.sqrt(6), rel=0.05)
    assert deviation["norm.weight"] == 0
    assert float(model.get_parameter("norm.weight").detach().mean()) == 1


def test_sharded_and_whole_models_have_the_same_initial_weights() -> None:
    """The ranks do not divide the widths, every kind of mesh is used, and the parts of all ranks are joined."""
    for equal in on_ranks("tests.trainer.sharded_fill:compare"):
        assert equal == {"shard": True, "replicate x shard": True, "shard x tensor": True}


@pytest.mark.parametrize(
    "config", [replace(config, tie_embeddings=False) for config in DECODERS.values()], ids=DECODERS
)
def test_two_pipeline_stages_compute_the_same_as_the_whole_model(config: Any) -> None:
    whole = make_model(config)
    first, last = copy.deepcopy(whole), copy.deepcopy(whole)
    first.norm = first.head = None
    last.embed = None
    if isinstance(config, Gpt2Config):
        last.positions = None
    del first.layers["1"], first.layers["2"], last.layers["0"]
    inputs, _ = make_batch(config, 2)
    assert torch.equal(last(first(inputs)), whole(inputs))
    names = {name for stage in (first, last) for name, _ in stage.named_parameters()}
    assert names == {name for name, _ in whole.named_parameters()}


# By day, one model of each kind; the others differ in sizes, or in parts that trace alike.
COMPILED = ("llama", "gpt2", "resnet18", "mlp")
# Mixtures of experts are left out of graphs.
DENSE_MODELS = {name: config for name, config in MODELS.items() if not isinstance(config, MoeConfig)}


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=name, marks=() if name in COMPILED else pytest.mark.nightly)
        for name, config in DENSE_MODELS.items()
    ],
)
def test_the_model_and_its_loss_compile_as_one_graph(config: Any) -> None:
    model = make_model(config)
    inputs, targets = make_batch(config, 2)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return compute_loss(model(x), y)

    # torch limits how often the same function is compiled, here once for each model.
    torch.compiler.reset()
    whole = torch.compile(step, backend="eager", fullgraph=True)
    assert torch.equal(whole(inputs, targets), step(inputs, targets))


@pytest.mark.nightly_cases("qwen2", "qwen3", "resnet50")
@every_model
def test_the_model_learns(config: Any) -> None:
    model = make_model(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inputs, targets = make_batch(config, 8)
    curve = []
    for _ in range(30):
        value = compute_loss(model(inputs), targets)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        curve.append(float(value.detach()))
    assert curve[-1] < 0.8 * curve[0]


@every_decoder
def test_attention_is_causal(config: Any) -> None:
    model = make_model(config).eval()
    inputs, _ = make_batch(config, 1)
    changed = inputs.clone()
    changed[0, 9] = (changed[0, 9] + 1) % 61
    before, after = model(inputs), model(changed)
    # Experts multiply the tokens of all positions together, which changes how their sums are rounded.
    tolerance = 1e-6 if isinstance(config, MoeConfig) else 0.0
    assert torch.allclose(before[:, :9], after[:, :9], rtol=0, atol=tolerance)
    assert not torch.equal(before[:, 9:], after[:, 9:])
    assert torch.allclose(model(inputs[:, :7]), before[:, :7], atol=1e-6)


def test_rotary_scores_depend_only_on_the_distance() -> None:
    """Moving queries and keys by the same number of positions does not change the scores."""
    cos, sin = rotary_table(LLAMA, "cpu")
    q, k = torch.randn(2, 1, 1, 1, 8).unbind()
    rotated = [rotate(x.expand(1, 1, 16, 8), cos, sin)[0, 0] for x in (q, k)]
    scores = rotated[0] @ rotated[1].t()
    for distance in range(4):
        assert torch.allclose(scores.diagonal(distance), scores[0, distance].expand(16 - distance), atol=1e-5)
    assert not torch.allclose(scores[0, 0], scores[0, 3], atol=1e-3)


def test_llama3_scaling_divides_only_low_frequencies() -> None:
    """The frequencies are given by their turns in the original context; the limits are 4 and 1."""
    config = replace(LLAMA, rope_scaling="llama3", rope_factor=8.0)
    frequencies = torch.tensor([1304.0, 4.0, 2.5, 1.0, 0.1]) * 2 * math.pi / 8192
    ratios = scale_frequencies(frequencies, config) / frequencies
    assert ratios.tolist() == pytest.approx([1, 1, 0.5 + 0.5 / 8, 1 / 8, 1 / 8])


@pytest.mark.parametrize("length", [5, 6, 11, 12, 16])
def test_windowed_attention_matches_a_mask(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some queries at a time give the same as one mask: within the window, at its end, and with several rounds."""
    monkeypatch.setattr(attention, "WINDOW_QUERIES", 3)
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(2, heads, length, 8, generator=generator) for heads in (4, 2, 2))
    distance = torch.arange(length)[:, None] - torch.arange(length)
    mask = (distance >= 0) & (distance < 5)
    expected = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    assert torch.allclose(attend(q, k, v, window=5), expected, atol=1e-6)
    causal = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert torch.equal(attend(q, k, v), causal)


def test_a_window_lowers_the_counted_operations() -> None:
    """Attention counts twice the pairs of tokens that see each other, as for causal attention without a window."""
    whole, windowed = shape_of(replace(MISTRAL, window=0)), shape_of(MISTRAL)
    attention = whole.flops_per_sample() - windowed.flops_per_sample()
    assert attention == 12 * 3 * 32 * (16**2 - (2 * 16 * 5 - 5**2))
    assert windowed.flops_per_sample(5) == whole.flops_per_sample(5)


def test_rotary_angles_stay_in_fp32() -> None:
    model = make_model(LLAMA)
    model.to(torch.bfloat16)
    model.init_buffers("cpu")
    inputs, _ = make_batch(LLAMA, 2)
    assert model(inputs).dtype == torch.bfloat16
    tables = {table.dtype for name, table in model.named_buffers()}
    assert tables == {torch.float32}
    assert len(list(model.named_buffers())) == 2
    assert not model.state_dict().keys() & {"layers.0.attention.cos"}


@pytest.mark.parametrize("config", [LLAMA, QWEN3], ids=["llama", "qwen3"])
@pytest.mark.filterwarnings("error")
def test_norms_run_in_fused_kernels_under_autocast(config: Any) -> None:
    """torch warns if the types of values and weights differ, because no fused kernel fits."""
    model = make_model(config)
    inputs, _ = make_batch(config, 2)
    torch.set_warn_always(True)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            assert model(inputs).dtype == torch.bfloat16
    finally:
        torch.set_warn_always(False)


def test_dropout_is_active_only_in_training() -> None:
    model = make_model(replace(GPT2, dropout=0.5))
    inputs, _ = make_batch(GPT2, 2)
    assert not torch.equal(model(inputs), model(inputs))
    model.eval()
    assert torch.equal(model(inputs), model(inputs))


def test_images_of_bytes_are_normalised() -> None:
    model = make_model(RESNET).eval()
    pixels = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    assert torch.allclose(model(pixels), model((pixels / 255 - mean) / std), atol=1e-5)


def test_the_loss_ignores_targets_of_minus_100() -> None:
    outputs, targets = torch.randn(2, 3, 5), torch.tensor([[1, -100, 2], [-100, -100, 4]])
    rows = outputs[targets != -100].log_softmax(-1)
    expected = -rows[torch.arange(3), torch.tensor([1, 2, 4])].mean()
    assert torch.allclose(compute_loss(outputs, targets), expected)
    assert compute_loss(outputs.bfloat16(), targets).dtype == torch.float32
    assert float(compute_loss(outputs, torch.full((2, 3), -100))) == 0


def make_model(config: Any, seed: int = 1) -> Any:
    """Make a model with initial weights, after checking that it can be built without memory."""
    with torch.device("meta"):
        shell = build_model(config)
    assert all(tensor.is_meta for tensor in [*shell.parameters(), *shell.buffers()])
    model: nn.Module = build_model(config)
    fill([model], seed)
    return model


def make_batch(config: Any, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    if isinstance(config, DecoderConfig):
        tokens = torch.randint(0, config.vocab_size, (count, config.seq_len + 1), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]
    size = (3, config.image_size, config.image_size) if isinstance(config, ResNetConfig) else (config.inputs,)
    targets = torch.randint(0, config.classes, (count,), generator=generator)
    return torch.randn(count, *size, generator=generator), targets
