"""The format of the residual stream: that of the products in bf16, else fp32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainer.config.models import Gpt2Config, LlamaConfig
from trainer.models.init import fill
from trainer.models.registry import build_model

LLAMA = LlamaConfig(vocab_size=61, dim=32, layers=2, heads=4, kv_heads=2, ffn=48, seq_len=16)
GPT2 = Gpt2Config(vocab_size=61, dim=32, layers=2, heads=4, seq_len=16)


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
@pytest.mark.parametrize(
    ("products", "residual"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        # Its range is too small for a sum over all layers.
        (torch.float16, torch.float32),
    ],
)
def test_blocks_get_the_format(config: Any, products: torch.dtype, residual: torch.dtype) -> None:
    model = build_model(config)
    fill([model], 1)
    formats = []
    for block in model.layers.values():
        block.register_forward_hook(lambda _block, _inputs, output: formats.append(output.dtype))
    with torch.autocast("cpu", products, enabled=products != torch.float32):
        logits = model(torch.arange(16).view(1, 16))
    assert formats == [residual] * 2
    assert logits.dtype == products
