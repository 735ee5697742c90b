"""Rotary positions: the angles of each position and frequency, and their scaling for longer sequences."""

from __future__ import annotations

import math

import torch

from trainer.config.models import LlamaLikeConfig


def rotary_table(config: LlamaLikeConfig, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine of each position and frequency, (seq_len, head_dim / 2), bitwise equal on every device."""
    powers = torch.arange(0, config.head_width, 2, device="cpu", dtype=torch.float32) / config.head_width
    positions = torch.arange(config.seq_len, device="cpu", dtype=torch.float32)
    angles = torch.outer(positions, scale_frequencies(1.0 / config.rope_theta**powers, config))
    return angles.cos().to(device), angles.sin().to(device)


def scale_frequencies(frequencies: torch.Tensor, config: LlamaLikeConfig) -> torch.Tensor:
    """Return the frequencies, lowered as `rope_scaling` says.

    llama3 (https://arxiv.org/abs/2407.21783, section 3.4.3 and the published code) counts the turns that a frequency
    makes in the original context. Frequencies with many turns tell near tokens apart and stay as they are, those with
    few turns are divided by the factor, and those in between are interpolated.
    """
    if config.rope_scaling == "none":
        return frequencies
    if config.rope_scaling == "linear":
        return frequencies / config.rope_factor
    turns = config.rope_original_len * frequencies / (2 * math.pi)
    low, high = config.rope_low_freq_factor, config.rope_high_freq_factor
    unscaled_share = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (unscaled_share + (1 - unscaled_share) / config.rope_factor)


class Angles:
    """Cosine and sine of each token's position, (B, 1, T, head_dim / 2), for samples that do not all count from 0.

    Not a dataclass: fully_shard would cast the values of one to bf16, which is too coarse for angles.
    """

    def __init__(self, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor) -> None:
        """Look the positions (B, T) up in the tables."""
        self.cos, self.sin = (table[positions].unsqueeze(1) for table in (cos, sin))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate each pair (i, i + head_dim / 2) by the angle of its position; Hugging Face pairs them the same way.

    `cos` and `sin` are the tables of all positions from 0 on, or those of `Angles`.
    """
    cos, sin = (table[..., : x.shape[2], :] for table in (cos, sin))
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)
