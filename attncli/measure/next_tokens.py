"""The next tokens that a model predicts, with all its heads and without some of them."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncli.errors import UserError
from attncli.models.answers import log_probabilities_at
from attncli.models.architectures import LOGITS_TO_KEEP
from attncli.models.model_blocks import forwards_replaced
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.removal import heads_removed
from attncli.records.next_tokens import NextToken, NextTokens

Probabilities = Float[Tensor, " vocabulary"]


class ProbabilityCache:
    """Next-token probabilities after the last text that was read, by the heads that were removed.

    Inside `filled_by_run`, model runs for other purposes fill the cache, too.
    """

    def __init__(self) -> None:
        self._ids: tuple[int, ...] = ()
        self._by_heads: dict[frozenset[str], Probabilities] = {}
        self._can_be_filled = True

    def get(self, pretrained: Pretrained, reading: Reading, heads: Sequence[str]) -> Probabilities:
        """Return the probabilities without some heads, computing them if they are not cached.

        Raises UserError for heads that the model does not have, and MemoryError if memory runs out.
        """
        by_heads, without = self._for_text(reading), frozenset(heads)
        if without not in by_heads:
            with heads_removed(heads, pretrained, key="heads"):
                place = len(reading.text.ids) - 1
                by_heads[without] = log_probabilities_at(pretrained, reading, place).exp()
        return by_heads[without]

    def _for_text(self, reading: Reading) -> dict[frozenset[str], Probabilities]:
        ids = tuple(reading.text.ids.tolist())
        if ids != self._ids:
            self._ids, self._by_heads = ids, {}
        return self._by_heads

    @contextmanager
    def filled_by_run(self, pretrained: Pretrained, reading: Reading, heads: Sequence[str]) -> Iterator[None]:
        """Inside this context, cache the probabilities of the model's last run on the text.

        `heads` are removed in that run. This works for models whose head reads the output of the body.
        """
        outputs: list[object] = []

        def keep(_body: nn.Module, _inputs: object, output: object) -> None:
            stream = output[0] if isinstance(output, tuple) else getattr(output, "last_hidden_state", None)
            if isinstance(stream, Tensor) and stream.shape[:2] == (1, len(reading.text.ids)):
                outputs[:] = [output]

        hook = pretrained.model.register_forward_hook(keep)
        try:
            yield
        finally:
            hook.remove()
        if outputs and self._can_be_filled and pretrained.with_head is not None:
            logits = _last_logits(pretrained, reading, outputs[0])
            self._can_be_filled = logits is not None
            if logits is not None and not logits.isnan().any():  # a separate run reports the cause of NaN
                self._for_text(reading)[frozenset(heads)] = logits.double().softmax(dim=-1)


@torch.no_grad()
def _last_logits(pretrained: Pretrained, reading: Reading, output: object) -> Probabilities | None:
    """Return the logits at the last token for the body's output, or None for a model that skips its body."""
    is_called = False

    def body_output(*_arguments: object, **_named: object) -> object:
        nonlocal is_called
        is_called = True
        return output

    model, inputs = pretrained.whole, dict(pretrained.inputs([reading]))
    place = len(reading.text.ids) - 1
    if LOGITS_TO_KEEP in inspect.signature(model.forward).parameters:
        inputs[LOGITS_TO_KEEP] = torch.tensor([place], device=pretrained.device)
    with forwards_replaced({pretrained.model: body_output}):
        logits: Tensor = model(**inputs)[0]
    return logits[0, -1] if is_called else None


def expected_next(
    pretrained: Pretrained,
    reading: Reading,
    *,
    heads: Sequence[str] = (),
    top: int = 10,
    cache: ProbabilityCache | None = None,
) -> NextTokens:
    """Return the likeliest next tokens after a text, with their probabilities with and without `heads`.

    The heads are removed together, as if their columns of W_O were zero. Tokens are ranked by the larger of
    the two probabilities. Raises UserError for a model that predicts no next token and for heads that the
    model does not have, and MemoryError if memory runs out.
    """
    name = pretrained.name
    if pretrained.predicts != "next" or pretrained.has_decoder:
        why = "has an encoder and a decoder" if pretrained.has_decoder else "predicts no next token"
        raise UserError(f"model: {name} {why}: use a decoder-only model")
    cache = ProbabilityCache() if cache is None else cache
    probabilities = cache.get(pretrained, reading, ())
    without = cache.get(pretrained, reading, heads) if heads else None
    ranking = probabilities if without is None else probabilities.maximum(without)
    ids = ranking.topk(min(top, len(ranking))).indices
    return NextTokens(
        tokens=NextToken.table(
            token_id=ids.tolist(),
            token=list(pretrained.labels(ids.tolist())),
            probability=probabilities[ids].tolist(),
            **({} if without is None else {"without": without[ids].tolist()}),
        )
    )
