"""The logit of a token as a sum: what each head and each MLP adds to the stream, along what W_U reads."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from attncli.attention.engines import attend
from attncli.attention.layer import AttentionLayer
from attncli.attention.results import Wanted
from attncli.experiments.ablate.predicted import answer_token
from attncli.experiments.ablate.removal import output_of
from attncli.experiments.attention_report import named
from attncli.experiments.survey.found_heads import found_texts
from attncli.experiments.survey.layers import Survey
from attncli.experiments.survey.reading import survey_of
from attncli.experiments.why.direction import Direction, difference, direction_of
from attncli.experiments.why.residual import Residual, recorded_calls, residual_of
from attncli.inputs.capture.capture import capture, check_computed_here, run_model
from attncli.inputs.capture.captured_layers import CapturedLayer, StopCapture
from attncli.inputs.models.pretrained import Pretrained, Reading
from attncli.inputs.output_projections import output_projection, projection_of_heads
from attncli.report import Tensors
from attncli.spec.models.why import WhySpec

WHERE = ("layer", "module", "kind", "stack", "head", "pattern")


@dataclass(frozen=True)
class Attribution:
    """The rows of all heads, the stream of the last token, and what its direction is for a logit."""

    rows: list[dict[str, Any]]
    residual: Residual
    direction: Direction
    ids: list[int]
    logit: float

    def of(self, part: Float[Tensor, "*part embed"]) -> Float[Tensor, "*part"]:
        """What a part of the stream adds to the logit."""
        return part @ self.direction.vector


def attribution(spec: WhySpec, reading: Reading, pretrained: Pretrained) -> Attribution:
    """That of the answer's logit, or of the most likely token's; UserError where the logits are no sum.

    `ids` are its token, and the one that it is compared with where that was asked for.
    """
    model, inputs = pretrained.whole, pretrained.inputs([reading])
    check_computed_here(model, inputs)
    modules: list[str] = []
    outputs: list[Tensor] = []
    with ExitStack() as hooks:
        survey = Survey([survey_of(spec)], [reading], pretrained, None, hooks)

        def keep(layer: CapturedLayer) -> Tensor:
            output = survey.take(layer)
            assert output is not None
            modules.append(layer.module)
            outputs.append(output[0, :, -1].double())
            return output

        with recorded_calls(model, len(reading.text.ids)) as calls:
            logits = run_model(model, inputs, keep)["logits"][0, -1]
    ids = [int(logits.argmax()) if spec.answer is None else answer_token(pretrained, spec.answer, "answer")]
    if spec.against is not None:
        ids.append(answer_token(pretrained, spec.against, "against"))
    residual = residual_of(pretrained, calls, modules, outputs)
    direction = direction_of(pretrained, calls, residual.last, logits, ids)
    rows = [{name: row[name] for name in WHERE} for row in found_texts(survey)[0].rows]
    return Attribution(rows, residual, direction, ids, float(difference(logits[ids])))


def by_key(found: Attribution, shown: Mapping[str, Any], reading: Reading, pretrained: Pretrained) -> Tensors:
    """p_ij v_j W_O . direction of one head at the last token, and its weights p_ij, for each token j."""
    head, kept = shown["head"], Tensors()

    def keep(layer: CapturedLayer) -> Tensor:
        if layer.module != shown["module"]:
            return output_of(layer)
        attention = layer.attention
        assert isinstance(attention, AttentionLayer)
        weights = attend(attention, Wanted(kept_heads=(head,))).kept_weights
        assert weights is not None
        _, values = attention.expanded()
        in_dim = attention.num_heads * values.shape[-1]
        projection = output_projection(pretrained.whole, layer.module, in_dim)
        assert projection is not None
        columns = projection_of_heads(projection, attention.num_heads)[head].double()
        own = weights[0, 0, -1].double()
        of_values = values[0, head].double() @ (found.direction.vector @ columns)
        kept["contribution"] = named(own * of_values, "key")
        kept["weight"] = named(own, "key")
        raise StopCapture

    capture(pretrained.whole, pretrained.inputs([reading]), keep)
    return kept
