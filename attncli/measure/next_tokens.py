"""What a model expects next: with all of its heads, and without some of them."""

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


class KnownProbabilities:
    """Those of the next tokens after the text that was read last, by the heads that were taken out.

    Each run of the model on that text says it once, also a run for something else, while `heard`.
    """

    def __init__(self) -> None:
        self._ids: tuple[int, ...] = ()
        self._by_heads: dict[frozenset[str], Probabilities] = {}
        self._can_be_heard = True

    def of(self, pretrained: Pretrained, reading: Reading, heads: Sequence[str]) -> Probabilities:
        """Those without some heads. UserError for heads that the model does not have; MemoryError."""
        by_heads, without = self._of_text(reading), frozenset(heads)
        if without not in by_heads:
            with heads_removed(heads, pretrained, key="heads"):
                place = len(reading.text.ids) - 1
                by_heads[without] = log_probabilities_at(pretrained, reading, place).exp()
        return by_heads[without]

    def _of_text(self, reading: Reading) -> dict[frozenset[str], Probabilities]:
        ids = tuple(reading.text.ids.tolist())
        if ids != self._ids:
            self._ids, self._by_heads = ids, {}
        return self._by_heads

    @contextmanager
    def heard(self, pretrained: Pretrained, reading: Reading, heads: Sequence[str]) -> Iterator[None]:
        """While it is open the model runs on the text, at last without these heads: nobody need run it again.

        Only of models whose head reads what the body gives.
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
        if outputs and self._can_be_heard and pretrained.with_head is not None:
            logits = _logits_of(pretrained, reading, outputs[0])
            self._can_be_heard = logits is not None
            if logits is not None and not logits.isnan().any():  # a run for it says what gives NaN
                self._of_text(reading)[frozenset(heads)] = logits.double().softmax(dim=-1)


@torch.no_grad()
def _logits_of(pretrained: Pretrained, reading: Reading, output: object) -> Probabilities | None:
    """The logits at the last token, from what the body gave; None where the model does not ask the body."""
    was_asked = False

    def given(*_arguments: object, **_named: object) -> object:
        nonlocal was_asked
        was_asked = True
        return output

    model, inputs = pretrained.whole, dict(pretrained.inputs([reading]))
    place = len(reading.text.ids) - 1
    if LOGITS_TO_KEEP in inspect.signature(model.forward).parameters:
        inputs[LOGITS_TO_KEEP] = torch.tensor([place], device=pretrained.device)
    with forwards_replaced({pretrained.model: given}):
        logits: Tensor = model(**inputs)[0]
    return logits[0, -1] if was_asked else None


def expected_next(
    pretrained: Pretrained,
    reading: Reading,
    *,
    heads: Sequence[str] = (),
    top: int = 10,
    known: KnownProbabilities | None = None,
) -> NextTokens:
    """The likeliest next tokens after a text; with `heads` also what each is without them, as if their
    columns of W_O were zero, all at once. What is `known` of the text is not computed again.

    The tokens that are likeliest in either case come first. UserError for a model that predicts no next
    token, and for heads that it does not have; MemoryError.
    """
    name = pretrained.name
    if pretrained.predicts != "next" or pretrained.has_decoder:
        why = "has an encoder beside its decoder" if pretrained.has_decoder else "predicts no next token"
        raise UserError(f"model: {name} {why}: next tokens are those of a decoder alone")
    known = KnownProbabilities() if known is None else known
    probabilities = known.of(pretrained, reading, ())
    without = known.of(pretrained, reading, heads) if heads else None
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
