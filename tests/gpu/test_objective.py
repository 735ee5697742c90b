"""The loss in chunks on a GPU: close to that of all logits, with the memory of a chunk, and without waiting."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.short_run import DEVICE
from trainer.models.functional import compute_loss
from trainer.models.head import Head
from trainer.objective import CrossEntropy

TOKENS, DIM, VOCABULARY, CHUNK = 8192, 512, 32_000, 1024


def test_a_chunked_loss_in_bf16_is_close_to_that_of_all_logits() -> None:
    """Both compute logits in bf16 and the loss in fp32; each is compared with fp32 throughout."""
    exact, _ = run(None, torch.float32)
    (loss, weight), _ = run(CHUNK, torch.bfloat16)
    (whole_loss, whole_weight), _ = run(None, torch.bfloat16)
    assert loss.item() == pytest.approx(exact[0].item(), rel=1e-3)
    assert loss.item() == pytest.approx(whole_loss.item(), rel=1e-5)
    assert distance(weight, exact[1]) < 1.2 * distance(whole_weight, exact[1])


def test_the_memory_is_that_of_a_chunk() -> None:
    _, whole = run(None, torch.bfloat16)
    _, chunked = run(CHUNK, torch.bfloat16)
    logits = 4 * TOKENS * VOCABULARY
    assert whole > 2 * logits
    # A chunk of logits and its probabilities in fp32, and weights in bf16 with their gradients in bf16 and fp32.
    assert chunked < 8 * CHUNK * VOCABULARY + 10 * VOCABULARY * DIM + 16 * TOKENS * DIM


def test_no_step_waits_for_the_gpu() -> None:
    head, hidden, targets = make_inputs()
    head(hidden, objective=CrossEntropy(CHUNK).from_hidden, targets=targets).backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        head(hidden, objective=CrossEntropy(CHUNK).from_hidden, targets=targets).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_target_outside_of_the_vocabulary_becomes_nan_without_waiting() -> None:
    head, hidden, targets = make_inputs()
    targets[5] = -1
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss = head(hidden, objective=CrossEntropy(CHUNK).from_hidden, targets=targets)
        loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert loss.isnan()
    assert hidden.grad is not None
    assert head.weight.grad is not None
    assert hidden.grad.isnan().any()
    assert head.weight.grad.isnan().any()


def run(chunk: int | None, dtype: torch.dtype) -> tuple[tuple[torch.Tensor, torch.Tensor], int]:
    """Return the loss and the gradient of the weight, and the bytes that were allocated for them at the peak."""
    head, hidden, targets = make_inputs()
    torch.cuda.reset_peak_memory_stats(DEVICE)
    before = torch.cuda.memory_allocated(DEVICE)
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        if chunk is None:
            loss = compute_loss(head(hidden), targets)
        else:
            loss = head(hidden, objective=CrossEntropy(chunk).from_hidden, targets=targets)
    loss.backward()
    assert head.weight.grad is not None
    return (loss.detach(), head.weight.grad), torch.cuda.max_memory_allocated(DEVICE) - before


def make_inputs() -> tuple[Head, torch.Tensor, torch.Tensor]:
    generator = torch.Generator(DEVICE).manual_seed(1)
    head = Head(DIM, VOCABULARY).to(DEVICE)
    torch.nn.init.normal_(head.weight, std=0.05, generator=generator)
    hidden = torch.randn(TOKENS, DIM, device=DEVICE, generator=generator, requires_grad=True)
    return head, hidden, torch.randint(VOCABULARY, (TOKENS,), device=DEVICE, generator=generator)


def distance(value: torch.Tensor, reference: torch.Tensor) -> float:
    return float((value - reference).norm() / reference.norm())
