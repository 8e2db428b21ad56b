"""`attncli.heads`, `attncli.survey` and `attncli.survey_texts`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from attncli.errors import UserError
from attncli.measure.heads import HeadOptions, check_reading, head_totals, surveyed
from attncli.measure.library import many_texts
from attncli.models.loading import in_use
from attncli.models.model_arguments import Model, TextOrReading, TextsOrFile
from attncli.models.pretrained import reader_of
from attncli.models.reading_text import reading_for
from attncli.notebook.run import NotebookReport, run
from attncli.records.arguments import Count, HeadsArgument, TokenNames, checked, head_names, token_names
from attncli.records.surveys import HeadSurvey

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from attncli.models.pretrained import Pretrained


def heads(
    model: "str | PathLike[str] | PreTrainedModel | Pretrained",
    text: str | Mapping[str, Any] | None = None,
    *,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    **settings: Any,
) -> NotebookReport:
    """Survey each head of a model on a text: `run("heads", model=model, sentence=text, ...)`.

    Instead of a text, {"ids": [...], "tokens": [...]} provides token ids and, optionally, their labels,
    without a tokenizer. Without a text, the model reads random tokens twice, which reveals induction heads.
    `report.table("heads")` has one row per head: entropy in nats, distance in tokens, other scores between 0
    and 1.
    """
    return run("heads", model=model, tokenizer=tokenizer, sentence=text, **settings)


@checked
def survey(
    model: Model,
    text: TextOrReading,
    *,
    skip_sink: Count = 0,
    weighted: bool = False,
    rollout: bool = False,
    queries: TokenNames = (),
    keys: TokenNames = (),
    ablate: HeadsArgument = (),
) -> HeadSurvey:
    """Survey each head on a text.

    The first `skip_sink` keys are left out and the other weights are renormalised. With `weighted`, each
    weight is multiplied by ||v W_O||. With `keys`, given by text or position, from_to_weight is the weight on
    these keys from the `queries`. `ablate` contains the names of heads, such as 5:11, whose output is zero
    during the run. Raises UserError if the text or the model does not allow a measurement, and MemoryError if
    memory runs out.
    """
    _check_weighted(weighted, head_names(ablate))
    with in_use(model) as whole:
        reading = reading_for(whole, text)
        pretrained = reader_of(whole, reading)
        options = HeadOptions(
            skip_sink=skip_sink,
            words=reading.text.words is not None,
            weighted=weighted,
            rollout=rollout,
            rest=not (skip_sink or weighted or reading.on_grid),
            looks=reading.on_grid,
            queries=tuple(token_names(queries)),
            keys=tuple(token_names(keys)),
            linear=not (skip_sink or weighted or rollout or reading.on_grid or reading.text.words),
        )
        check_reading(reading, pretrained, options, ("queries", "keys"))
        run = surveyed(pretrained, [reading], options, ablate=head_names(ablate))
        result = run.text_survey(0)
    looks = run.looks[0] if run.looks else None
    look_rollout = None if looks is None else looks.rolled()
    return replace(
        result,
        tokens_of_text=len(reading.text.ids),
        rollout=run.rollout[0].numpy(force=True) if rollout else None,
        looks=None if looks is None else looks.by_layer(),
        look_rollout=None if look_rollout is None else look_rollout.numpy(force=True),
        notes=(*run.way.notes(), *reading.left_out_notes()),
    )


@checked
def survey_texts(
    model: Model,
    texts: TextsOrFile,
    *,
    truncate: bool = False,
    words: bool = False,
    skip_sink: Count = 0,
    weighted: bool = False,
    ablate: HeadsArgument = (),
) -> HeadSurvey:
    """Survey each head over many texts: means with 95 % intervals.

    Each text is read once, and texts of equal length run together. A text that the model cannot read is left
    out, with a note. With `truncate`, long texts are cut; with `words`, tokens are merged into words. For the
    other arguments, see `survey`. Raises UserError if no text can be read, and MemoryError if memory runs
    out.
    """
    _check_weighted(weighted, head_names(ablate), words=words)
    options = HeadOptions(
        skip_sink=skip_sink,
        words=words,
        weighted=weighted,
        rest=not (skip_sink or weighted),
        linear=not (skip_sink or words or weighted),
    )
    with many_texts(model, texts, options, truncate=truncate) as (pretrained, many):
        totals, notes = head_totals(pretrained, many, options, ablate=head_names(ablate))
    result, _ = totals.survey()
    return replace(result, notes=(*many.notes(), *notes))


def _check_weighted(weighted: bool, ablated: Sequence[str], *, words: bool = False) -> None:
    """Raise UserError if `weighted` is combined with an argument that removes the needed values."""
    for key, is_used in {"ablate": bool(ablated), "words": words}.items():
        if weighted and is_used:
            raise UserError(f"{key}: cannot be combined with `weighted`")
