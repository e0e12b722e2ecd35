"""The rule is proven or the model refused: fake decoders that compute as vLLM's do, without an engine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from specshim.errors import CaptureError
from specshim.extraction import residual_stream
from specshim.extraction.capture import HiddenStatesCapture
from specshim.extraction.decoder_layers import norms_of

HIDDEN, LAYERS = 16, 4


class FusedNorm(nn.Module):
    """RMS norm as vLLM's: with a residual it adds first, in place in both tensors."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(HIDDEN))

    def forward(self, hidden, residual=None):
        if residual is None:
            return self._normed(hidden)
        residual.add_(hidden)
        hidden.copy_(self._normed(residual))
        return hidden, residual

    def _normed(self, x):
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype) * self.weight


class PairLayer(nn.Module):
    """Returns (hidden, residual): the next norm adds them."""

    def __init__(self):
        super().__init__()
        self.input_layernorm = FusedNorm()
        self.proj = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, hidden, residual):
        if residual is None:
            hidden, residual = self.input_layernorm(hidden), hidden.clone()
        else:
            hidden, residual = self.input_layernorm(hidden, residual)
        return self.proj(hidden), residual


class FirstLayer(PairLayer):
    """Returns (stream, stream before this layer), as Cohere's and StableLM's do."""

    def forward(self, hidden, residual):
        return hidden + self.proj(self.input_layernorm(hidden)), hidden


class PostNormFirstLayer(FirstLayer):
    """No norm on its input: nothing in the next layer proves what this layer's output means."""

    def forward(self, hidden, residual):
        return hidden + self.input_layernorm(self.proj(hidden)), hidden


class SingleLayer(PairLayer):
    def forward(self, hidden, residual):
        return hidden + self.proj(self.input_layernorm(hidden))


class NormlessLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, hidden, residual):
        return hidden + self.proj(hidden)


class DeltaLayer(PairLayer):
    """Returns what the model adds to the stream by itself."""

    def forward(self, hidden, residual):
        return self.proj(self.input_layernorm(hidden))


class StreamsLayer(PairLayer):
    """Returns several streams, as Gemma3n's do."""

    def forward(self, hidden, residual):
        return torch.stack([hidden] * 4)


class BatchedLayer(SingleLayer):
    """Keeps a leading batch dimension, as vLLM's transformers backend does."""

    def forward(self, hidden, residual):
        return super().forward(hidden, residual).view(1, -1, HIDDEN)


class Decoder(nn.Module):
    def __init__(self, layers, final="norm"):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.add_module(final, FusedNorm())
        self.final = final
        self.streams = []

    def forward(self, hidden):
        residual = None
        self.streams = []
        for layer in self.layers:
            output = layer(hidden, residual)
            residual = None
            if isinstance(layer, DeltaLayer):
                hidden = hidden + output
            elif isinstance(layer, BatchedLayer):
                hidden = output.view(-1, HIDDEN)
            elif isinstance(layer, StreamsLayer):
                hidden = output.mean(0)
            elif isinstance(layer, FirstLayer):
                hidden = output[0]
            elif isinstance(output, tuple):
                hidden, residual = output
            else:
                hidden = output
            self.streams.append(hidden.clone() if residual is None else hidden + residual)
        norm = getattr(self, self.final)
        return norm(hidden) if residual is None else norm(hidden, residual)[0]


class TinyForCausalLM(nn.Module):
    def __init__(self, *layer_classes, final="norm", dtype=torch.float32, layers=None):
        super().__init__()
        torch.manual_seed(0)
        self.model = Decoder(layers or [kind() for kind in layer_classes], final).to(dtype)
        self.dtype = dtype


class FakeRunner:
    """As much of a model runner as the capture sees: a V1 batch of one request, rows padded to `padded_to`."""

    def __init__(self, model, padded_to=None):
        self.model = model
        self.padded_to = padded_to
        self.input_batch = SimpleNamespace(req_ids=["r"], num_reqs=1)

    def execute_model(self, scheduler_output):
        rows = self.padded_to or scheduler_output.total_num_scheduled_tokens
        with torch.inference_mode():
            return self.model.model(torch.randn(rows, HIDDEN).to(self.model.dtype))


def _step(runner, tokens=5, request_id="r"):
    runner.input_batch.req_ids = [request_id]
    new = SimpleNamespace(req_id=request_id, num_computed_tokens=0)
    runner.execute_model(
        SimpleNamespace(
            total_num_scheduled_tokens=tokens,
            num_scheduled_tokens={request_id: tokens},
            scheduled_new_reqs=[new],
            scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[]),
        )
    )


def _assert_exact(model, layer_ids=(3, 0, 1), padded_to=None):
    """Run a calibrating step and one after it, and compare the rows of both with the streams."""
    runner = FakeRunner(model, padded_to)
    capture = HiddenStatesCapture(runner, list(layer_ids), len(model.model.layers), captures=True)
    for request_id in ("first", "second"):
        _step(runner, request_id=request_id)
        rows = capture.take([request_id])[request_id]
        for layer_id in layer_ids:
            assert rows[layer_id].shape == (5, HIDDEN)
            assert rows[layer_id].dtype == model.dtype
            assert torch.equal(rows[layer_id], model.model.streams[layer_id][:5]), f"layer {layer_id}"
    return capture


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("layer", "rule"),
    [
        (PairLayer, "hidden + residual"),
        (FirstLayer, "first of the pair"),
        (PostNormFirstLayer, "first of the pair"),
        (SingleLayer, "single tensor"),
        (BatchedLayer, "single tensor"),
    ],
)
def test_each_form_is_read_right(layer, rule, dtype):
    # The pair's tensors are overwritten by the next norm: equal rows show that they were copied before.
    assert _assert_exact(TinyForCausalLM(*[layer] * LAYERS, dtype=dtype)).rule == rule


def test_rows_beyond_the_steps_tokens_are_padding():
    _assert_exact(TinyForCausalLM(*[PairLayer] * LAYERS), padded_to=8)


def test_a_small_last_layer_in_bfloat16_is_still_read_right():
    model = TinyForCausalLM(*[FirstLayer] * LAYERS, dtype=torch.bfloat16)
    # So little is added that both readings, normed, agree within the rounding that is allowed for.
    for layer in model.model.layers:
        layer.proj.weight.data.mul_(0.05)
        layer.proj.bias.data.mul_(0.05)
    assert _assert_exact(model).rule == "first of the pair"


def test_a_few_very_large_values_do_not_hide_that_all_others_are_wrong():
    output = torch.ones(5, HIDDEN, dtype=torch.bfloat16)
    output[:, 0] = 1000
    wrong = output.clone()
    wrong[:, 1:] = 40
    norm = nn.Identity()
    errors = residual_stream.norm_errors({"single tensor": wrong}, norm, output)
    assert errors["single tensor"][0] < residual_stream.ROUNDING * torch.finfo(torch.bfloat16).eps
    assert not residual_stream.fitting_rules(errors, torch.bfloat16)


def test_classes_with_different_rules_each_get_their_own():
    capture = _assert_exact(TinyForCausalLM(FirstLayer, SingleLayer, FirstLayer, SingleLayer))
    assert capture.rule == "FirstLayer: first of the pair; SingleLayer: single tensor"
    assert capture.describe()["layer_class"] == "FirstLayer, SingleLayer"


def test_a_class_that_nothing_proves_is_refused_by_name():
    model = TinyForCausalLM(PostNormFirstLayer, PostNormFirstLayer, PostNormFirstLayer, NormlessLayer)
    with pytest.raises(CaptureError, match=r"TinyForCausalLM: .*model\.layers\.0 \(PostNormFirstLayer\)"):
        _assert_exact(model)


@pytest.mark.parametrize("final", ["norm", "ln_f", "final_layernorm", "embedding_norm", "whatever_comes_last"])
def test_the_final_norm_is_seen_under_any_name(final):
    _assert_exact(TinyForCausalLM(*[PostNormFirstLayer] * LAYERS, final=final))


def test_a_model_without_a_final_norm_is_proven_by_what_its_decoder_returns():
    model = TinyForCausalLM(*[PostNormFirstLayer] * LAYERS)
    model.model.norm = nn.Identity()
    _assert_exact(model)


def test_a_final_norm_that_does_not_run_as_a_module_is_refused():
    model = TinyForCausalLM(*[PostNormFirstLayer] * LAYERS)
    norm = FusedNorm()
    object.__setattr__(model.model, "_functional", norm)
    del model.model.norm
    model.model.final = "_functional"
    with pytest.raises(CaptureError, match=r"TinyForCausalLM: no norm of the hidden size ran after .*\.3"):
        _assert_exact(model)


def test_norms_of_queries_and_norms_that_reduce_over_ranks_are_not_computed_again():
    class RMSNormTP(FusedNorm):
        pass

    model = TinyForCausalLM(*[PairLayer] * LAYERS)
    for layer in model.model.layers:
        layer.q_norm = FusedNorm()
        layer.whole_norm = RMSNormTP()
    names = [path for path, _ in norms_of(model)]
    assert len(names) == LAYERS + 1
    assert all(name.endswith(("input_layernorm", "model.norm")) for name in names)


def test_a_layer_that_returns_only_its_own_part_is_refused():
    with pytest.raises(CaptureError, match=r"TinyForCausalLM: no single reading.*not known, and no states"):
        _assert_exact(TinyForCausalLM(*[DeltaLayer] * LAYERS))


def test_several_streams_are_refused_with_their_shape():
    with pytest.raises(CaptureError, match=r"TinyForCausalLM: .*shape \(4, 5, 16\).*not one residual stream"):
        _assert_exact(TinyForCausalLM(*[StreamsLayer] * LAYERS))


def test_a_looped_layer_is_refused():
    shared = [PairLayer(), PairLayer()]
    with pytest.raises(CaptureError, match=r"TinyForCausalLM: decoder layer [02] .*more than once.*looped"):
        _assert_exact(TinyForCausalLM(layers=[*shared, *shared]))


def test_rows_split_over_ranks_are_refused():
    with pytest.raises(CaptureError, match=r"TinyForCausalLM: .*returned 3 rows for a step of 5 tokens.*sequence"):
        _assert_exact(TinyForCausalLM(*[PairLayer] * LAYERS), padded_to=3)


def test_a_layer_that_changes_its_form_after_calibration_is_refused():
    model = TinyForCausalLM(*[PairLayer] * LAYERS)
    runner = FakeRunner(model)
    capture = HiddenStatesCapture(runner, [0], LAYERS, captures=True)
    _step(runner)
    capture.take(["r"])
    model.model.layers[0].forward = lambda hidden, residual: hidden
    with pytest.raises(CaptureError, match=r"TinyForCausalLM: .*rule 'hidden \+ residual' does not apply"):
        _step(runner)


def test_remove_leaves_no_hook():
    model = TinyForCausalLM(*[PairLayer] * LAYERS)
    runner = FakeRunner(model)
    HiddenStatesCapture(runner, [0], LAYERS, captures=True).remove()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert "execute_model" not in vars(runner)


class TestPipelineStages:
    """Stages hold their own layers and placeholders for the others'."""

    class PPMissingLayer(nn.Identity):
        pass

    class Stage(Decoder):
        def forward(self, hidden):
            residual = None
            for layer in self.layers:
                if not isinstance(layer, TestPipelineStages.PPMissingLayer):
                    hidden, residual = layer(hidden, residual)
            return hidden if hasattr(self, "norm") else (hidden, residual)

    def _first_stage(self, kind):
        model = TinyForCausalLM(PairLayer)
        model.model = self.Stage([kind(), kind(), self.PPMissingLayer(), self.PPMissingLayer()])
        del model.model.norm
        return model

    def test_a_stage_without_the_final_norm_proves_itself_where_its_layers_begin_with_a_norm(self):
        runner = FakeRunner(self._first_stage(PairLayer))
        capture = HiddenStatesCapture(runner, [0, 1, 3], LAYERS, captures=True)
        _step(runner)
        assert capture.held_layer_ids == (0, 1)
        assert capture.rule == "hidden + residual"

    def test_a_stage_without_any_proof_waits_for_the_other_stages_rule(self):
        runner = FakeRunner(self._first_stage(PostNormFirstLayer))
        capture = HiddenStatesCapture(runner, [0, 3], LAYERS, captures=True)
        _step(runner, request_id="calibration")
        assert capture.rule is None
        assert capture.take(["calibration"]) == {}
        capture.set_rule("first of the pair")
        _step(runner, request_id="r")
        assert capture.take(["r"])["r"][0].shape == (5, HIDDEN)
        assert capture.rule == "first of the pair"

    def test_rules_that_differ_by_class_are_not_carried_over(self):
        runner = FakeRunner(self._first_stage(PostNormFirstLayer))
        capture = HiddenStatesCapture(runner, [0], LAYERS, captures=True)
        _step(runner)
        with pytest.raises(CaptureError, match=r"TinyForCausalLM: .*pipeline_parallel_size=1"):
            capture.set_rule("A: single tensor; B: first of the pair")
