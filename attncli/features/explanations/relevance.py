"""Relevance of each prompt token for an answer, from gradients and from backward propagation.

Attention x gradient (Chefer et al. 2021, 2103.15679), gradient x input, and AttnLRP (Achtibat et al. 2024,
2402.05602). The explained quantity is the sum of the logits of the answer's tokens, each given the tokens
before it.
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

SAVED_PER_SCORE, SAVED_PER_ENTRY, FLOAT_BYTES = 10, 40, 4
"""Numbers saved by a layer for the backward pass, per score of a head and per entry of a token's vector."""
LEAST_SHARE = 1e-9
"""A place counts as read if its share of the length of the gradient is at least this large."""
CONSERVED = 1e-3
"""The allowed difference, in logits, between the logits and the sum of the relevance of all parts."""


class _Differentiable(NamedTuple):
    """A run whose logits are differentiable with respect to the token vectors."""

    vectors: Float[Tensor, "1 read embed"]
    logits: Float[Tensor, " new"]
    weights: Sequence[Float[Tensor, "1 head query key"]]


def _run(
    run: ExplainedRun, way: str, *, keeps_lengths: bool = False, from_embeddings: bool = True
) -> _Differentiable:
    """Run the model, and return the explained logits, the embeddings they depend on, and the layers' weights.

    Without `from_embeddings`, the logits depend on a later vector, which a hook replaces. Raises UserError
    for a model without eager attention, or if there is too little memory for the backward pass.
    """
    model = run.whole
    _refuse_large_runs(run, way)
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
        run.refuse(way, "its embeddings mix tokens with other inputs")
    weights = [weights for _, weights in returned_weights(outputs)]
    logits = run.explained(outputs, keeps_lengths=keeps_lengths)
    return _Differentiable(leaves[0], logits, weights)


def _refuse_large_runs(run: ExplainedRun, way: str) -> None:
    config = run.pretrained.model.config.get_text_config()
    count, layers = len(run.ids), run.pretrained.num_layers
    scores = count**2 * getattr(config, "num_attention_heads", 1) * SAVED_PER_SCORE
    vectors = count * getattr(config, "hidden_size", 1) * SAVED_PER_ENTRY
    needed = FLOAT_BYTES * (layers * (scores + vectors) + 2 * count * getattr(config, "vocab_size", 0))
    refuse_bytes(way, needed, "a shorter prompt, or another way to read")


class Gradients(NamedTuple):
    """Attention x gradient and gradient x input for each token of the prompt, from one backward pass."""

    attention_gradient: Float[Tensor, " token"]
    gradient_input: Float[Tensor, " token"]


def gradients(run: ExplainedRun) -> Gradients:
    """Compute attention x gradient and gradient x input in one backward pass.

    Chefer et al. 2021: R starts as I and becomes R + A R at each layer, where A is the mean over the heads of
    max(0, dA * A); the result is the rows of the tokens that chose the answer. Gradient x input: dx . x of
    the embeddings.
    """
    with with_gradients(run.pretrained.whole):
        result = _run(run, "attention_gradient")
        if not result.weights or any(weights_fault(weights) for weights in result.weights):
            run.refuse("attention_gradient", "its eager attention returns no weights between tokens")
        wanted = [result.vectors, *result.weights]
        vector_gradient, *weight_gradients = torch.autograd.grad(
            result.logits.sum(), wanted, allow_unused=True
        )
    mixed = []
    for weights, gradient in zip(result.weights, weight_gradients, strict=True):
        if gradient is None:
            run.refuse("attention_gradient", "its logits do not depend on the weights that it returns")
        matrix = (weights.detach() * gradient)[0].clamp_min(0).mean(dim=0).double()
        mixed.append(matrix + torch.eye(len(matrix), dtype=torch.float64, device=matrix.device))
    token_relevance = run.by_token((vector_gradient * result.vectors.detach())[0].double().sum(dim=-1).cpu())
    return Gradients(run.prompt_scores(rolled_out(mixed, run.places)), token_relevance[: run.num_prompt])


class TokenRelevance(NamedTuple):
    """The relevance of each token of the prompt, and the other parts that add up to the logits.

    `answer` is the relevance of the answer's tokens; `absorbed` is the relevance of biases and softmaxes.
    """

    prompt: Float[Tensor, " token"]
    answer: float
    absorbed: float
    logits: float

    @property
    def error(self) -> float:
        """The absolute difference between the sum of all parts and the logits."""
        return abs(float(self.prompt.sum()) + self.answer + self.absorbed - self.logits)


def attnlrp(run: ExplainedRun) -> TokenRelevance:
    """Compute AttnLRP of the sum of the logits, as gradient x input with modified gradients.

    Raises UserError if the parts do not add up to the logits, because attn then has no rule for some part of
    the model.
    """
    model, relevance = run.whole, Relevance()
    with with_gradients(model):
        with relevance.made(model):
            result = _run(run, "attnlrp", keeps_lengths=True)
        token_relevance = run.by_token(relevance.of(result.logits, result.vectors))
    count, logits = run.num_prompt, result.logits.detach().double().sum()
    parts = TokenRelevance(
        token_relevance[:count],
        float(token_relevance[count:].sum()),
        float(relevance.absorbed),
        float(logits),
    )
    size = max(1.0, float(result.logits.detach().abs().sum()), float(token_relevance.abs().sum()))
    if not parts.error <= CONSERVED * size:
        error = f"differs from the logits by {parts.error:.2g} of {size:.3g}"
        is_number = isfinite(parts.error)
        run.refuse("attnlrp", f"the relevance of all parts {error if is_number else 'cannot be computed'}")
    return parts


@contextmanager
def _cut_behind_blocks(run: ExplainedRun, streams: list[Tensor]) -> Iterator[None]:
    """Detach the output of the last block while the model runs, and append it to `streams`."""
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
    """Return the places in the last residual stream that the output depends on, and their gradient shares."""
    streams = list[Tensor]()
    with with_gradients(run.whole), _cut_behind_blocks(run, streams):
        result = _run(run, "places", from_embeddings=False)
        if not streams:
            raise UserError(f"model: {run.pretrained.name} has no recognised blocks to read vectors from")
        (gradient,) = torch.autograd.grad(result.logits.sum(), streams)
    lengths = gradient[0].double().norm(dim=-1).cpu()
    places = (lengths > LEAST_SHARE * lengths.sum()).nonzero().flatten()
    if not len(places):
        raise UserError(f"model: the output of {run.pretrained.name} does not depend on its last vectors")
    return places, lengths[places] / lengths[places].sum()


def directions(run: ExplainedRun) -> Float[Tensor, "row embed"]:
    """Return the direction in which the logits read the last residual stream at each place.

    The scale of the last norm is frozen. Raises UserError if the directions do not reproduce the logits up to
    a constant, because the model changes its logits after W_U.
    """
    model, streams, relevance = run.whole, list[Tensor](), Relevance()
    with with_gradients(model), _cut_behind_blocks(run, streams):
        with relevance.made(model):
            result = _run(run, "direct_logit", keeps_lengths=True, from_embeddings=False)
        if not streams:
            run.refuse("direct_logit", "it has no recognised blocks")
        read = relevance.of(result.logits, streams[0])
        (gradient,) = torch.autograd.grad(result.logits.sum(), streams)
    error = abs(
        float(read[run.places].sum() + relevance.absorbed - result.logits.detach().double().sum().cpu())
    )
    if not error <= CONSERVED * max(1.0, float(result.logits.detach().abs().sum())):
        run.refuse("direct_logit", "its logits are not linear in its last stream")
    return gradient[0, run.places]
