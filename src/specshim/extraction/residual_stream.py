"""What a decoder layer's output means: turn it into the residual stream after that layer.

Most vLLM layers return (hidden, residual) and leave the addition to the next layer's fused norm; some return the
whole stream as the first of the pair, some as a single tensor. Which of these a model does cannot be read off the
output's form, so the rule is chosen by what the model itself does with the output: see `calibration`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from specshim.errors import CaptureError

SUM = "hidden + residual"
FIRST = "first of the pair"
SINGLE = "single tensor"
RULES = (SUM, FIRST, SINGLE)

# How far a norm that is computed again may be from the model's own result, in units of its dtype's epsilon: it is a
# function of one row, so the right reading is off by about one. Both the largest error and the mean must be within,
# as a few very large values, which trained models have, would hide that all others are wrong.
ROUNDING = 8
# In a narrow dtype a wrong reading can come within that: the residual stream of a deep model hardly changes its
# direction in one layer. The right one is still much nearer, as only a fused addition rounds otherwise.
CLEARLY_NEARER = 4


def candidates(output: Any) -> dict[str, torch.Tensor]:
    """Return rule name -> residual stream of shape (tokens, hidden size) for every reading of a layer's output.

    Raises CaptureError if the output has no such reading.
    """
    if isinstance(output, torch.Tensor):
        return {SINGLE: _rows(output)}
    if isinstance(output, (tuple, list)) and output and isinstance(output[0], torch.Tensor):
        hidden = output[0]
        residual = output[1] if len(output) > 1 else None
        if isinstance(residual, torch.Tensor) and residual.shape == hidden.shape:
            return {SUM: _rows(hidden + residual), FIRST: _rows(hidden)}
        return {FIRST: _rows(hidden)}
    raise CaptureError(
        f"a decoder layer returned {type(output).__name__}, which is not a residual stream; this architecture is not "
        "supported"
    )


def apply_rule(rule: str, output: Any) -> torch.Tensor:
    """Return the residual stream of a layer's output by the rule that calibration chose. The result may be a view.

    Raises CaptureError if the output has another form than the rule is for.
    """
    pair = isinstance(output, (tuple, list)) and bool(output)
    if pair != (rule != SINGLE) or (rule == SUM and (len(output) < 2 or not isinstance(output[1], torch.Tensor))):
        raise CaptureError(
            f"a decoder layer returned {type(output).__name__}, to which the rule {rule!r} does not apply"
        )
    if rule == SUM:
        return _rows(output[0] + output[1])
    return _rows(output[0] if pair else output)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """Drop the leading batch dimension of 1 that vLLM's transformers backend keeps."""
    if tensor.dim() == 3 and tensor.shape[0] == 1:
        return tensor.squeeze(0)
    if tensor.dim() != 2:
        raise CaptureError(
            f"a decoder layer returned a tensor of shape {tuple(tensor.shape)} where (tokens, hidden size) was "
            "expected; its output is not one residual stream, so this architecture is not supported"
        )
    return tensor


def norm_errors(
    readings: dict[str, torch.Tensor], norm: torch.nn.Module, norm_output: torch.Tensor
) -> dict[str, tuple[float, float]]:
    """Return rule -> (largest error / largest value, mean error / mean value) of `norm` on each reading.

    `norm_output` of shape (tokens, hidden size) is what the model itself got from that norm.
    """
    expected = norm_output.float()
    tiny = torch.finfo(torch.float32).tiny
    largest, mean = expected.abs().max().clamp_min(tiny), expected.abs().mean().clamp_min(tiny)
    errors = {}
    for rule, stream in readings.items():
        try:
            with torch.inference_mode():
                produced = norm(stream.clone())
        except (TypeError, ValueError, RuntimeError):
            return {}  # it takes more than the rows, like a gate, so it is not a norm of the stream
        produced = produced[0] if isinstance(produced, (tuple, list)) else produced
        if not isinstance(produced, torch.Tensor) or produced.shape != expected.shape:
            continue
        difference = (produced.float() - expected).abs()
        errors[rule] = (float(difference.max() / largest), float(difference.mean() / mean))
    return errors


def fitting_rules(errors: dict[str, tuple[float, float]], dtype: torch.dtype) -> Sequence[str]:
    """Return the rules whose error is rounding of `dtype`; one that is clearly nearer than the others stands alone."""
    tolerance = ROUNDING * torch.finfo(dtype).eps
    fitting = sorted((mean, rule) for rule, (largest, mean) in errors.items() if max(largest, mean) <= tolerance)
    if len(fitting) > 1 and fitting[0][0] * CLEARLY_NEARER < fitting[1][0]:
        del fitting[1:]
    return [rule for _, rule in fitting]
