"""A draft's matrix products over weights of 16 bits where the sums stay float32. Called by `eagle_layer.py`.

What a draft's pass takes on a CPU is reading its weights, so two bytes each in place of four make it about twice as
fast. Its logits move by some ten-thousandths, which is nothing to a draft: the target checks every token of it.
"""

from __future__ import annotations

from typing import Any

import torch

_ENGINE = "fbgemm"


class HalfLinear:
    """x · Wᵀ with W kept in float16."""

    __slots__ = ("_packed",)

    def __init__(self, packed: Any) -> None:  # noqa: ANN401 - torch's own class of packed weights has no type
        self._packed = packed

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x · Wᵀ [tokens, out] for x [tokens, in] in float32."""
        product: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._packed)
        return product


def half_linear(weight: torch.Tensor) -> HalfLinear | None:
    """Return the product with a float32 weight [out, in] on a CPU; None elsewhere, or where torch does not offer it."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None  # bfloat16 takes two bytes as it is
    if _ENGINE not in torch.backends.quantized.supported_engines or weight.abs().max() > torch.finfo(torch.half).max:
        return None
    engine = torch.backends.quantized.engine
    try:
        torch.backends.quantized.engine = _ENGINE  # it decides by whose code the weight is laid out
        return HalfLinear(torch.ops.quantized.linear_prepack_fp16(weight, None))
    except (AttributeError, RuntimeError, TypeError):  # operators inside torch: absent or changed in another version
        return None
    finally:
        torch.backends.quantized.engine = engine
