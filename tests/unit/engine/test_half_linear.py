"""A draft's products over 16-bit weights: the exact ones but for the last digits, and nowhere else than in float32."""

from __future__ import annotations

import pytest
import torch

from engine.spec_decode.half_linear import half_linear

needs_fbgemm = pytest.mark.skipif(
    "fbgemm" not in torch.backends.quantized.supported_engines, reason="this CPU's torch has no such products"
)


def weights() -> torch.Tensor:
    """[96, 64], rows of very unlike sizes."""
    return torch.randn(96, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 1, 96).unsqueeze(1)


@needs_fbgemm
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_every_output_of_every_row_is_near(rows: int) -> None:
    weight, x = weights(), torch.randn(rows, 64, generator=torch.Generator().manual_seed(1))
    x[rows // 2] *= 1000.0  # a prompt's first state is like that
    product = half_linear(weight)
    assert product is not None
    scale = x.norm(dim=1, keepdim=True) * weight.norm(dim=1)
    assert ((product(x) - x @ weight.T).abs() / scale).max() < 5e-4


@needs_fbgemm
def test_torchs_choice_of_engine_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.backends.quantized.engine
    assert half_linear(weights()) is not None
    assert torch.backends.quantized.engine == before
    monkeypatch.setattr(torch.ops.quantized, "linear_prepack_fp16", None)  # as in a version that has dropped it
    assert half_linear(weights()) is None
    assert torch.backends.quantized.engine == before


def test_what_16_bits_cannot_hold_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert half_linear(weights() * 1e6) is None
    assert half_linear(weights().bfloat16()) is None
    assert half_linear(weights().to("meta")) is None
    monkeypatch.setattr(type(torch.backends.quantized), "supported_engines", ["qnnpack"])
    assert half_linear(weights()) is None
