"""Self-attention: one sequence attends to itself, with one head."""

from jaxtyping import Float
from torch import Tensor

from attncli.attention.visibility import Visibility
from attncli.experiments.attention_report import build_report, named
from attncli.experiments.draws import Draws
from attncli.experiments.reading.texts import Texts
from attncli.experiments.sampled_attention.attention import sampled_attention
from attncli.experiments.sources import Source, embed
from attncli.mechanisms.dot_product_attention import attend_by_loop
from attncli.report import Numbers, Report
from attncli.spec.attention import SelfSpec
from attncli.spec.variants import POSITIONS

MAX_LOOP_CELLS = 2**16
POSITION_NOTE = "Attention has no notion of position: permuting the tokens only permutes the rows."
CAUSAL_NOTE = "The causal mask is all that attention knows of positions here; an encoder block just drops it."


def _loop_difference(
    spec: SelfSpec, source: Source, output: Float[Tensor, "*batch token dim"]
) -> float | None:
    """The largest difference between the loop form and the matrix form; None where a loop takes too long."""
    *batch, num_tokens, _ = source.vectors.shape
    if num_tokens**2 * (batch[0] if batch else 1) > MAX_LOOP_CELLS:
        return None
    visibility = Visibility(num_tokens, num_tokens, causal=spec.causal, window=spec.window)
    (visible,) = visibility.whole(source.vectors.device)
    looped = attend_by_loop(source.vectors, visible, scale=spec.scale, softmax=spec.softmax)
    return (looped - output).abs().max().item()


def run(spec: SelfSpec, texts: Texts, draws: Draws) -> Report:
    """Weights and output of softmax(query key^T scale) value; without projection the loop form as well."""
    (source,) = embed(spec, texts, draws)
    attention = sampled_attention(spec, [source], draws)
    tensors = attention.tensors | {"output": named(attention.output, "query", "dim")}
    statistics = attention.statistics
    notes = []
    variants = set(spec.variants_on())
    if not variants & {*POSITIONS, "window"}:
        notes.append(CAUSAL_NOTE if spec.causal else POSITION_NOTE)
    if spec.batch_size:
        notes.append("Batch items never talk to each other.")
    if spec.projection == "none" and variants - {"window"}:
        notes.append("The loop form stands for attention without variants: it is left out.")
    elif spec.projection == "none":
        difference = _loop_difference(spec, source, attention.output)
        if difference is None:
            notes.append(f"The loop form is left out beyond {MAX_LOOP_CELLS} weights.")
        else:
            statistics["agreement"] = Numbers(loop_vs_matmul=difference)
    return build_report(spec, texts, tensors, statistics, [*notes, *attention.notes])
