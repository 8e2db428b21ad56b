"""What is asked about pairs that are known: syntactic relations, pairs of positions, a table of scores.

The doors of `measure`, as in `library`.
"""

from collections.abc import Callable
from dataclasses import replace
from os import fspath
from typing import TYPE_CHECKING

from attncli.core.names import PairMethod
from attncli.errors import UserError
from attncli.features.pairs.relation_results import HeadRelations
from attncli.features.pairs.results import HeadsOnPairs, ScoresOfPositions
from attncli.models.loading import in_use
from attncli.models.model_arguments import Model, TextsWithPairs
from attncli.models.text_files import ManyTexts
from attncli.records.arguments import Count, FilePath, Folds, HeadsArgument, Seed, checked, head_names
from attncli.records.columns import Records

if TYPE_CHECKING:
    from attncli.features.pairs.pair_counts import PairOptions


@checked
def relations(
    model: Model,
    sentences: FilePath,
    *,
    truncate: bool = False,
    ablate: HeadsArgument = (),
    progress: Callable[[float], None] | None = None,
) -> HeadRelations:
    """How often each head looks along each syntactic relation of a CoNLL-U file, with 95 % intervals.

    UserError for a file that is no such file, and for a model of two stacks; see `HeadRelations`.
    """
    from attncli.features.pairs.pair_files import SentenceFile
    from attncli.features.pairs.relations import relations as relations_of
    from attncli.features.pairs.relations import sentences_of

    with SentenceFile(fspath(sentences)) as file, in_use(model) as pretrained:
        many = sentences_of(file, pretrained, truncate=truncate, progress=progress)
        result = relations_of(pretrained, many, ablate=head_names(ablate))
    return replace(result, notes=(*many.notes(), *result.notes))


@checked
def pairs(
    model: Model,
    texts: TextsWithPairs,
    *,
    apart: Count = 0,
    symmetric: bool | None = None,
    apc: bool | None = None,
    method: PairMethod = "heads",
    folds: Folds | None = None,
    seed: Seed = 0,
    truncate: bool = False,
    ablate: HeadsArgument = (),
    progress: Callable[[float], None] | None = None,
) -> HeadsOnPairs:
    """Which heads look from one position of known pairs to the other, tested on texts that were held out.

    `texts` is a file (JSON Lines, CSV, aligned lines, CoNLL-U), or mappings with text, pairs as [[0, 3]] and,
    optionally, unit (word, token or character), context, id and group. Positions nearer than `apart` do not
    count. `symmetric` adds the weights of both directions, `apc` takes their average product correction: both
    by default with the `method` logistic, an L1 logistic regression over all heads (Rao et al. 2021). The
    method mean averages the best heads. With `folds` each of so many parts of the texts is held out in turn,
    otherwise one half, sampled by `seed`. See `HeadsOnPairs`. UserError for a text or a pair that is none.
    """
    from attncli.features.pairs.known_pairs import known_pairs
    from attncli.features.pairs.pair_files import open_pairs
    from attncli.features.pairs.pair_runs import PairReader

    with open_pairs(texts) as file, in_use(model) as pretrained:
        # Pairs of a text and its context have a direction.
        is_usual = method == "logistic" and not pretrained.has_decoder
        is_symmetric = is_usual if symmetric is None else symmetric
        is_corrected = method == "logistic" and is_symmetric if apc is None else apc
        options = _pair_options(apart, symmetric=is_symmetric, apc=is_corrected)
        reader = PairReader(pretrained, options, truncate=truncate)
        many = ManyTexts(file, reader.read, progress, key="pairs")
        return known_pairs(reader, many, method=method, folds=folds, seed=seed, ablate=head_names(ablate))


def _pair_options(apart: int, *, symmetric: bool, apc: bool) -> "PairOptions":
    from attncli.features.pairs.pair_counts import PairOptions

    if apc and not symmetric:
        raise UserError("apc: needs `symmetric`: the correction is of pairs without a direction")
    return PairOptions(apart=apart, symmetric=symmetric, corrected=apc)


@checked
def pair_table(
    model: Model,
    texts: TextsWithPairs,
    *,
    apart: Count = 0,
    symmetric: bool = False,
    apc: bool = False,
    truncate: bool = False,
    ablate: HeadsArgument = (),
) -> Records[ScoresOfPositions]:
    """The scores of every head at each two positions of texts with pairs, to fit a model of one's own to.

    A row for each two positions that count, with the weight of their pair, 0 for none. The arguments are
    those of `pairs`, whose method logistic is fitted to such a table.
    """
    from attncli.features.pairs.pair_files import open_pairs
    from attncli.features.pairs.pair_runs import PairReader
    from attncli.features.pairs.pair_scores import scores_of_positions

    options = _pair_options(apart, symmetric=symmetric, apc=apc)
    with open_pairs(texts) as file, in_use(model) as pretrained:
        reader = PairReader(pretrained, options, truncate=truncate)
        many = ManyTexts(file, reader.read, key="pairs")
        return scores_of_positions(reader, many, ablate=head_names(ablate))
