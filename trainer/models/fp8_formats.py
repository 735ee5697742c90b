"""The formats of fp8 products, and what a cast to them returns."""

from __future__ import annotations

import torch

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
OPERAND_FORMATS = (E4M3, E4M3, E5M2)
"""Formats of a layer's operands that share one scale: input, weight and gradient of the output."""
SMALLEST_SCALE = 1e-12
Cast = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Fp8 values, their transpose, and two numbers: the scale and the largest absolute value before the cast."""
