"""Library functions for known pairs: syntactic relations, pairs of positions, and a table of scores."""

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
    """Measure how often each head looks along each syntactic relation of a CoNLL-U file, with 95 % intervals.

    Raises UserError for a file that is not CoNLL-U or a model with two stacks. See `HeadRelations`.
    """
    from attncli.features.pairs.pair_files import SentenceFile
    from attncli.features.pairs.relations import read_sentences
    from attncli.features.pairs.relations import relations as measure_relations

    with SentenceFile(fspath(sentences)) as file, in_use(model) as pretrained:
        many = read_sentences(file, pretrained, truncate=truncate, progress=progress)
        result = measure_relations(pretrained, many, ablate=head_names(ablate))
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
    """Find the heads that look from one position of known pairs to the other; test each on held-out texts.

    `texts` is a file (JSON Lines, CSV, aligned lines, CoNLL-U), or mappings with text, pairs as [[0, 3]] and,
    optionally, unit (word, token or character), context, id and group. Positions nearer than `apart` are
    ignored. `symmetric` adds the weights of both directions, and `apc` applies the average product
    correction; both are on by default with the `method` logistic, an L1 logistic regression over all heads
    (Rao et al. 2021). The method mean averages the scores of the best heads. `folds` splits the texts into
    that many parts and holds out each part in turn; by default, half of the texts, sampled with `seed`, are
    held out. Raises UserError for an invalid text or pair. See `HeadsOnPairs`.
    """
    from attncli.features.pairs.known_pairs import known_pairs
    from attncli.features.pairs.pair_files import open_pairs
    from attncli.features.pairs.pair_runs import PairReader

    with open_pairs(texts) as file, in_use(model) as pretrained:
        # Pairs between a text and its context have a direction.
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
        raise UserError(
            "apc: needs `symmetric`, because the correction applies only to pairs without a direction"
        )
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
    """Compute every head's scores for each pair of positions in texts, as input for other models.

    There is one row per pair of positions, with the weight of the known pair, or 0 for any other pair.
    The arguments are those of `pairs`, whose method logistic is fitted to such a table.
    """
    from attncli.features.pairs.pair_files import open_pairs
    from attncli.features.pairs.pair_runs import PairReader
    from attncli.features.pairs.pair_scores import position_scores

    options = _pair_options(apart, symmetric=symmetric, apc=apc)
    with open_pairs(texts) as file, in_use(model) as pretrained:
        reader = PairReader(pretrained, options, truncate=truncate)
        many = ManyTexts(file, reader.read, key="pairs")
        return position_scores(reader, many, ablate=head_names(ablate))
