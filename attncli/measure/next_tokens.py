"""What a model expects next: with all of its heads, and without some of them."""

from collections.abc import Sequence

from attncli.errors import UserError
from attncli.measure.removal import heads_removed
from attncli.models.answers import log_probabilities_at
from attncli.models.pretrained import Pretrained, Reading
from attncli.records.writings import NextToken, NextTokens


def expected_next(
    pretrained: Pretrained, reading: Reading, *, heads: Sequence[str] = (), top: int = 10
) -> NextTokens:
    """The likeliest next tokens after a text; with `heads` also what each is without them, as if their
    columns of W_O were zero, all at once.

    The tokens that are likeliest in either case come first. UserError for a model that predicts no next
    token, and for heads that it does not have; MemoryError.
    """
    name = pretrained.name
    if pretrained.predicts != "next" or pretrained.has_decoder:
        why = "has an encoder beside its decoder" if pretrained.has_decoder else "predicts no next token"
        raise UserError(f"model: {name} {why}: next tokens are those of a decoder alone")
    place = len(reading.text.ids) - 1
    probabilities = log_probabilities_at(pretrained, reading, place).exp()
    without = None
    if heads:
        with heads_removed(heads, pretrained, key="heads"):
            without = log_probabilities_at(pretrained, reading, place).exp()
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
