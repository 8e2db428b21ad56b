"""How much each token of a prompt matters for an answer by gradients, and by relevance propagated backwards.

Attention x gradient (Chefer et al. 2021, 2103.15679), gradient x input, AttnLRP (Achtibat et al. 2024,
2402.05602). What is explained is the sum of the logits of the answer's tokens, each after those before it.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import isfinite
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attncli.errors import UserError, refuse_bytes
from attncli.features.explanations.token_flow import ExplainedRun, rolled_out
from attncli.models.architectures import BLOCK, forward_arguments
from attncli.models.capture import model_errors, returned_weights, weights_fault
from attncli.models.relevance_rules import Relevance, with_gradients

KEPT_PER_SCORE, KEPT_PER_ENTRY, FLOAT_BYTES = 10, 40, 4
"""Numbers that a layer keeps for the backward pass, per score of a head and per entry of a token's vector."""
LEAST_SHARE = 1e-9
"""Of the length of a gradient: below it a vector is not read."""
CONSERVED = 1e-3
"""By how much the relevance of all parts may differ from the logits, in logits."""


class _Differentiable(NamedTuple):
    """A run whose logits know how they came of the vectors of the tokens."""

    vectors: Float[Tensor, "1 read embed"]
    logits: Float[Tensor, " new"]
    weights: Sequence[Float[Tensor, "1 head query key"]]


def _run(
    run: ExplainedRun, way: str, *, keeps_lengths: bool = False, from_embeddings: bool = True
) -> _Differentiable:
    """What is explained, the embeddings it came of, and the weights of all layers.

    Not `from_embeddings` where they come of what a hook makes of a later vector. UserError for a model
    without eager attention, or where the backward pass does not fit into memory.
    """
    model = run.whole
    _refuse_what_does_not_fit(run, way)
    leaves: list[Tensor] = []

    def begin(_module: nn.Module, _inputs: object, output: object) -> object:
        embedded = None if leaves else run.embedded(output)
        if embedded is None:
            return output
        leaves.append(embedded.vectors.detach().clone().requires_grad_(from_embeddings))
        return embedded.as_given(leaves[0])

    model.config.use_cache = False
    inputs = run.inputs()
    with model_errors(model.config.model_type, f"explain {run.what}"), ExitStack() as hooks:
        hooks.enter_context(run.embeddings.register_forward_hook(begin))
        without_cache = {"use_cache": False} if "use_cache" in forward_arguments(model) else {}
        outputs = model(**inputs, output_attentions=True, **without_cache)
    if not leaves:
        run.refuse(way, "its embeddings are not those of the tokens alone")
    weights = [weights for _, weights in returned_weights(outputs)]
    logits = run.explained(outputs, keeps_lengths=keeps_lengths)
    return _Differentiable(leaves[0], logits, weights)


def _refuse_what_does_not_fit(run: ExplainedRun, way: str) -> None:
    config = run.pretrained.model.config.get_text_config()
    count, layers = len(run.ids), run.pretrained.num_layers
    scores = count**2 * getattr(config, "num_attention_heads", 1) * KEPT_PER_SCORE
    vectors = count * getattr(config, "hidden_size", 1) * KEPT_PER_ENTRY
    needed = FLOAT_BYTES * (layers * (scores + vectors) + 2 * count * getattr(config, "vocab_size", 0))
    refuse_bytes(way, needed, "a shorter prompt, or another way to read")


class Gradients(NamedTuple):
    """Of one backward pass: attention x gradient, and gradient x input, for each token of the prompt."""

    attention_gradient: Float[Tensor, " token"]
    gradient_input: Float[Tensor, " token"]


def gradients(run: ExplainedRun) -> Gradients:
    """Chefer et al. 2021: R = I, then R + A R for each layer, A the mean over heads of max(0, dA * A);
    the rows of the tokens that chose the answer. Gradient x input: of the embeddings, dx . x.
    """
    with with_gradients(run.pretrained.whole):
        result = _run(run, "attention_gradient")
        if not result.weights or any(weights_fault(weights) for weights in result.weights):
            run.refuse("attention_gradient", "its eager attention gives no weights of the tokens")
        wanted = [result.vectors, *result.weights]
        of_vectors, *of_weights = torch.autograd.grad(result.logits.sum(), wanted, allow_unused=True)
    mixed = []
    for weights, gradient in zip(result.weights, of_weights, strict=True):
        if gradient is None:
            run.refuse("attention_gradient", "its logits do not depend on the weights that it gives")
        matrix = (weights.detach() * gradient)[0].clamp_min(0).mean(dim=0).double()
        mixed.append(matrix + torch.eye(len(matrix), dtype=torch.float64, device=matrix.device))
    of_tokens = run.by_token((of_vectors * result.vectors.detach())[0].double().sum(dim=-1).cpu())
    return Gradients(run.of_prompt(rolled_out(mixed, run.places)), of_tokens[: run.num_prompt])


class TokenRelevance(NamedTuple):
    """The relevance of each token of the prompt, and what else adds up to the logits.

    `rest` is that of the answer's tokens themselves, `absorbed` that of biases and softmaxes.
    """

    of_prompt: Float[Tensor, " token"]
    rest: float
    absorbed: float
    logits: float

    @property
    def error(self) -> float:
        """By how much the sum of all parts differs from the logits."""
        return abs(float(self.of_prompt.sum()) + self.rest + self.absorbed - self.logits)


def attnlrp(run: ExplainedRun) -> TokenRelevance:
    """AttnLRP of the sum of the logits, by gradient x input with changed gradients.

    UserError where the parts do not add up to the logits: a model computes by rules that are not known.
    """
    model, relevance = run.whole, Relevance()
    with with_gradients(model):
        with relevance.made(model):
            result = _run(run, "attnlrp", keeps_lengths=True)
        of_tokens = run.by_token(relevance.of(result.logits, result.vectors))
    count, logits = run.num_prompt, result.logits.detach().double().sum()
    parts = TokenRelevance(
        of_tokens[:count], float(of_tokens[count:].sum()), float(relevance.absorbed), float(logits)
    )
    size = max(1.0, float(result.logits.detach().abs().sum()), float(of_tokens.abs().sum()))
    if not parts.error <= CONSERVED * size:
        error = f"differs from the logits by {parts.error:.2g} of {size:.3g}"
        is_number = isfinite(parts.error)
        run.refuse("attnlrp", f"the relevance of all parts {error if is_number else 'cannot be computed'}")
    return parts


@contextmanager
def _cut_behind_blocks(run: ExplainedRun, streams: list[Tensor]) -> Iterator[None]:
    """While the model runs, what its last block gives begins anew: `streams` holds that."""
    model = run.pretrained.model
    blocks = [module for name, module in model.named_modules() if BLOCK.fullmatch(name)]

    def cut(_module: nn.Module, _inputs: object, output: object) -> object:
        vectors = output[0] if isinstance(output, tuple) else output
        if not isinstance(vectors, Tensor):
            return output
        streams[:] = [vectors.detach().requires_grad_()]
        return (streams[0], *output[1:]) if isinstance(output, tuple) else streams[0]

    with ExitStack() as hooks:
        for block in blocks[-1:]:
            hooks.enter_context(block.register_forward_hook(cut))
        yield


def rows_read(run: ExplainedRun) -> tuple[Int[Tensor, " row"], Float[Tensor, " row"]]:
    """The places of the last stream that what is explained depends on, and their shares of the gradient."""
    streams = list[Tensor]()
    with with_gradients(run.whole), _cut_behind_blocks(run, streams):
        result = _run(run, "places", from_embeddings=False)
        if not streams:
            raise UserError(f"model: {run.pretrained.name} has no blocks whose vectors could be read")
        (gradient,) = torch.autograd.grad(result.logits.sum(), streams)
    lengths = gradient[0].double().norm(dim=-1).cpu()
    places = (lengths > LEAST_SHARE * lengths.sum()).nonzero().flatten()
    if not len(places):
        raise UserError(f"model: what {run.pretrained.name} says does not depend on its last vectors")
    return places, lengths[places] / lengths[places].sum()


def directions(run: ExplainedRun) -> Float[Tensor, "row embed"]:
    """What the logits read of the last stream at each place, the last norm's scale frozen.

    UserError where that and a constant are not the logit: a model changes its logits after W_U.
    """
    model, streams, relevance = run.whole, list[Tensor](), Relevance()
    with with_gradients(model), _cut_behind_blocks(run, streams):
        with relevance.made(model):
            result = _run(run, "direct_logit", keeps_lengths=True, from_embeddings=False)
        if not streams:
            run.refuse("direct_logit", "no blocks were found in it")
        read = relevance.of(result.logits, streams[0])
        (gradient,) = torch.autograd.grad(result.logits.sum(), streams)
    error = abs(
        float(read[run.places].sum() + relevance.absorbed - result.logits.detach().double().sum().cpu())
    )
    if not error <= CONSERVED * max(1.0, float(result.logits.detach().abs().sum())):
        run.refuse("direct_logit", "its logits are no sum of what its last stream holds")
    return gradient[0, run.places]
