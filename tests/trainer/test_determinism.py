"""run.deterministic: irreproducible operations fail with the setting's name instead of a warning."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from trainer.config.errors import ConfigError
from trainer.determinism import name_irreproducible_operation, require_deterministic_kernels


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    require_deterministic_kernels()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("strict")
def test_an_irreproducible_operation_is_an_error_that_names_the_setting() -> None:
    with pytest.raises(ConfigError) as failure, name_irreproducible_operation():
        torch.zeros(3).put_(torch.tensor([0]), torch.tensor([1.0]))
    assert str(failure.value) == (
        "run.deterministic: true, but put_ has no reproducible kernel on this device; "
        "set it to false, or replace the operation in the model"
    )


@pytest.mark.usefixtures("strict")
def test_attention_does_not_fall_back_to_a_warning() -> None:
    """torch's attention kernels have an irreproducible backward pass if it is only asked to warn."""
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


def test_other_errors_are_not_changed() -> None:
    with pytest.raises(RuntimeError, match="closed by peer"), name_irreproducible_operation():
        raise RuntimeError("Connection closed by peer")
