"""What a decoder layer's output means: turn it into the residual stream after that layer.

Most vLLM layers return (hidden, residual) and leave the addition to the next layer's fused norm; some return the
whole stream as the first of the pair, some as a single tensor. Which of these a model does cannot be read off the
output's form, so the rule is chosen by calibration: of the candidates for the last layer, the right one is the one
that the model's own final norm turns into that norm's own output.
"""

from __future__ import annotations

from typing import Any

import torch

from specshim.errors import CaptureError

SUM = "hidden + residual"
FIRST = "first of the pair"
SINGLE = "single tensor"


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
        "supported yet"
    )


def apply_rule(rule: str, output: Any) -> torch.Tensor:
    """Return the residual stream of a layer's output by the rule that calibration chose. The result may be a view."""
    if rule == SUM:
        return _rows(output[0] + output[1])
    return _rows(output if isinstance(output, torch.Tensor) else output[0])


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """Drop the leading batch dimension of 1 that vLLM's transformers backend keeps."""
    if tensor.dim() == 3 and tensor.shape[0] == 1:
        return tensor.squeeze(0)
    if tensor.dim() != 2:
        raise CaptureError(
            f"a decoder layer returned a tensor of shape {tuple(tensor.shape)} where (tokens, hidden size) was "
            "expected; its output is not one residual stream, so this architecture is not supported yet"
        )
    return tensor


def choose_rule(readings: dict[str, torch.Tensor], norm: torch.nn.Module, norm_output: torch.Tensor) -> str:
    """Return the name of the one reading that `norm` turns into `norm_output`, which the model itself computed.

    Tolerance: the norm is a function of one row, so the right reading reproduces the output up to the rounding of
    the model's dtype (a relative error of about one epsilon; eight are allowed), while a wrong one is off by the size
    of a whole layer's contribution. Raises CaptureError if no reading or several readings fit.
    """
    expected = _rows(norm_output).float()
    tolerance = 8 * torch.finfo(norm_output.dtype).eps
    errors: dict[str, float] = {}
    for rule, stream in readings.items():
        produced = norm(stream.clone())
        produced = produced[0] if isinstance(produced, (tuple, list)) else produced
        scale = expected.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
        errors[rule] = float((produced.float() - expected).abs().max() / scale)
    fitting = [rule for rule, error in errors.items() if error <= tolerance]
    if len(fitting) == 1:
        return fitting[0]
    measured = ", ".join(f"{rule}: relative error {error:.1e}" for rule, error in errors.items())
    raise CaptureError(
        f"{'no' if not fitting else 'more than one'} reading of the last decoder layer's output reproduces the model's "
        f"final norm ({measured}; allowed {tolerance:.1e}). The residual stream of this architecture is not known, and "
        "no states were returned."
    )
