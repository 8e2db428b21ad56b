"""Find heads that separate two groups of texts, and test detectors on held-out groups."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isnan, nan, sqrt
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.errors import UserError
from attncli.features.separate.auroc import (
    Separation,
    auroc_interval,
    call_rates,
    corrected_p,
    difference_interval,
    error_without_variance,
    hedges_g,
    largest_by_chance,
    mean_degrees,
    paired_difference,
    ranked_features,
    roc_curve,
    separation,
)
from attncli.features.separate.detectors import (
    Fit,
    LinearDetector,
    TextsToFit,
    bag_of_words_scores,
    best_feature,
    distracted_heads,
    logistic_regression,
    sparse_regression,
)
from attncli.features.separate.results import (
    ATTENTION,
    BASELINE,
    DetectorAuroc,
    DetectorWeight,
    FittedDetector,
    GroupAuroc,
    HeldOutAuroc,
    RocOfGroup,
    SeparatedTexts,
    SeparatingFeature,
    SeparatingHead,
    TextScore,
)
from attncli.features.separate.text_features import (
    LOOKBACK,
    SHARE,
    FeatureTable,
    HeadFeature,
    UsableFeatures,
    usable_features,
)
from attncli.measure.folds import NamedParts, group_parts
from attncli.records.columns import Records

ALL_HEADS = "all heads"
"""The detector chosen in advance: its AUROC is `held_out.auroc`."""
BEST_HEAD, DISTRACTED, LOOKBACK_LENS = "best head", "Attention Tracker", "Lookback Lens"
LENGTH, LOSS, WORDS = "length", "loss", "bag of words"
ANSWER_LENGTH, TOKENS = "answer length", "bag of tokens"
CHANCE = "chance"
PERMUTATIONS = 1000
NUM_STRONGEST, NUM_WRONG = 20, 20
RATES = torch.linspace(0, 1, 51, dtype=torch.float64)
"""The false positive rates at which curves are drawn."""
START = 60
"""The number of characters of a text that a table shows."""


class Measured(NamedTuple):
    """The origin of a detector: a model, the SHA-256 of its weights, the label's values, and a file."""

    model: str = ""
    digest: str = ""
    negative: str = "negative"
    positive: str = "positive"
    texts: str = ""


UNKNOWN = Measured()


@dataclass(frozen=True)
class Trial:
    """A detector with the scores of all texts and the threshold from each split, and its fit to all texts."""

    name: str
    kind: str
    places: Sequence[int]
    scores: list[Float[Tensor, " text"]]
    thresholds: list[float]
    whole: LinearDetector | None


def separated(
    table: FeatureTable,
    is_positive: Bool[Tensor, " text"],
    *,
    key: str = "",
    seed: int = 0,
    permutations: int = PERMUTATIONS,
    measured: Measured = UNKNOWN,
    progress: Callable[[float], None] | None = None,
) -> SeparatedTexts:
    """Separate labelled texts by their features; the groups of the texts are held out in turn.

    Raises UserError for groups that cannot be held out, and if scikit-learn is missing.
    """
    generator = torch.Generator().manual_seed(seed)
    groups = [text.group for text in table.texts]
    parts = group_parts(groups, is_positive, generator, key=key)
    usable = usable_features(table.numbers)
    features = [table.features[place] for place in usable.places]
    if not features:
        raise UserError("texts: must differ from one another: every head statistic is the same for all texts")
    trials = _trials(table, usable, is_positive, parts, generator, progress or ignore_progress)
    baselines = [trial for trial in trials if trial.kind == BASELINE]
    best = max(baselines, key=lambda trial: _mean_auroc(trial, is_positive, parts)[0])
    detectors = DetectorAuroc.rows(
        _detector_row(trial, None if trial is best else best, is_positive, parts) for trial in trials
    )
    by_name = {row.detector: row for row in detectors}
    measures = _measures(usable.numbers, is_positive, parts, features, permutations, generator)
    predictions = _predictions(trials[0], table, is_positive, parts, measured)
    wrong = predictions.where(lambda row: not row.is_right).sorted(lambda row: -abs(row.margin))
    return SeparatedTexts(
        held_out=_held_out(by_name[ALL_HEADS], by_name[best.name], predictions, is_positive),
        num_texts=len(table.texts),
        num_positive=int(is_positive.sum()),
        num_groups=len(parts.names),
        num_features=len(features),
        num_permutations=permutations,
        detectors=detectors,
        by_group=GroupAuroc.rows(row for trial in trials for row in _group_rows(trial, is_positive, parts)),
        strongest=_strongest(measures, usable.numbers),
        wrong=TextScore.rows(
            {name: cell for name, cell in row.items() if name != "digest"} for row in wrong[:NUM_WRONG]
        ),
        heads=_heads(table.features, measures),
        features=measures,
        predictions=predictions,
        fitted=FittedDetector.rows(_fitted(trial, table, measured) for trial in trials if trial.whole),
        coefficients=DetectorWeight.rows(
            row for trial in trials for row in _coefficients(trial, table.features, usable)
        ),
        curves=RocOfGroup.rows(
            [_chance(), *(row for trial in (trials[0], best) for row in _curves(trial, is_positive, parts))]
        ),
        shared=parts.shared,
        notes=(*table.notes, *_same_texts(table, parts)),
    )


def ignore_progress(_: float) -> None:
    """A progress callback that does nothing."""


def _same_texts(table: FeatureTable, parts: NamedParts) -> Iterator[str]:
    """A note on texts that occur in more than one of the held-out groups."""
    parts_by_text = dict[str, set[int]]()
    for text, part in zip(table.texts, parts.by_text.tolist(), strict=True):
        parts_by_text.setdefault(text.words, set()).add(part)
    if count := sum(len(part_numbers) > 1 for part_numbers in parts_by_text.values()):
        occur = "text occurs" if count == 1 else "texts occur"
        yield f"{count:,} {occur} in several groups, so a detector is tested on texts that it was fitted to."


def _trials(
    table: FeatureTable,
    usable: UsableFeatures,
    is_positive: Bool[Tensor, " text"],
    parts: NamedParts,
    generator: torch.Generator,
    progress: Callable[[float], None],
) -> list[Trial]:
    """Every detector, fitted to the choosing texts of each split and finally to all texts."""
    statistics = [table.features[place].statistic for place in usable.places]
    every = range(len(statistics))
    kinds: list[tuple[str, str, Tensor, Sequence[int], Fit]] = [
        (ALL_HEADS, ATTENTION, usable.numbers, every, sparse_regression),
        (BEST_HEAD, ATTENTION, usable.numbers, every, best_feature),
    ]
    published: list[tuple[str, str, Fit]] = [
        (DISTRACTED, SHARE, distracted_heads),
        (LOOKBACK_LENS, LOOKBACK, logistic_regression),
    ]
    for name, statistic, published_fit in published:
        if statistic_places := [place for place, each in enumerate(statistics) if each == statistic]:
            kinds.append((name, ATTENTION, usable.numbers, statistic_places, published_fit))
    for name, column in (
        (LENGTH, table.lengths),
        (ANSWER_LENGTH, table.answer_lengths),
        (LOSS, table.losses),
    ):
        if column is not None:
            kinds.append((name, BASELINE, column.double().unsqueeze(1), [0], best_feature))
    trials = []
    progress(0.0)
    for number, (name, kind, numbers, places, fit) in enumerate(kinds):
        texts = TextsToFit(numbers[:, [*places]], is_positive, parts.by_text, generator)
        trials.append(_run_trial(name, kind, texts, places, fit, parts))
        progress((number + 1) / (len(kinds) + 1))
    trials.append(_run_words_trial(WORDS, [text.words for text in table.texts], is_positive, parts))
    if table.ids:
        tokens = [" ".join(map(str, ids)) for ids in table.ids]
        trials.append(_run_words_trial(TOKENS, tokens, is_positive, parts))
    progress(1.0)
    return trials


def _run_trial(
    name: str, kind: str, texts: TextsToFit, places: Sequence[int], fit: Fit, parts: NamedParts
) -> Trial:
    scores, thresholds = [], []
    for split in parts.splits():
        choosing = texts.subset(split.choosing)
        detector = fit(choosing).with_threshold(choosing.numbers, choosing.is_positive)
        scores.append(detector.scores(texts.numbers))
        thresholds.append(detector.threshold)
    whole = None
    if kind == ATTENTION:
        whole = fit(texts).with_threshold(texts.numbers, texts.is_positive)
    return Trial(name, kind, places, scores, thresholds, whole)


def _run_words_trial(
    name: str, words: Sequence[str], is_positive: Bool[Tensor, " text"], parts: NamedParts
) -> Trial:
    scores = [bag_of_words_scores(words, is_positive, split.choosing) for split in parts.splits()]
    return Trial(name, BASELINE, [], scores, [0.0] * len(scores), None)


class MeanAuroc(NamedTuple):
    """The mean AUROC over the held-out groups, its error with degrees of freedom, and the lowest AUROC."""

    auroc: float
    error: float
    degrees: float
    lowest: float


def _mean_auroc(trial: Trial, is_positive: Bool[Tensor, " text"], parts: NamedParts) -> MeanAuroc:
    groups = [_group_separation(trial, number, is_positive, parts) for number in range(len(parts.names))]
    aurocs = [float(each.auroc) for each in groups]
    errors = [
        _error(float(each.error), float(each.degrees), is_positive[parts.by_text == part])
        for part, each in enumerate(groups)
    ]
    return MeanAuroc(_mean(aurocs), *_mean_error(errors), min(aurocs))


def _error(error: float, degrees: float, is_positive: Bool[Tensor, " text"]) -> tuple[float, float]:
    """The error of a group's AUROC or, if the error is 0, a bound, which is wide for a small group."""
    if error > 0:
        return error, degrees
    return error_without_variance(int(is_positive.sum()), int((~is_positive).sum())), inf


def _group_separation(
    trial: Trial, number: int, is_positive: Bool[Tensor, " text"], parts: NamedParts
) -> Separation:
    in_group = parts.by_text == number
    return separation(trial.scores[number][in_group].unsqueeze(1), is_positive[in_group])


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _mean_error(errors: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The error of a mean over independent groups, and its degrees of freedom; NaN if an error is unknown."""
    group_errors, degrees = [error for error, _ in errors], [group_degrees for _, group_degrees in errors]
    total = sqrt(sum(error**2 for error in group_errors))
    return total / len(errors), mean_degrees(group_errors, degrees)


def _finite_interval(ends: tuple[float, float]) -> tuple[float, float] | tuple[None, None]:
    return (None, None) if isnan(ends[0]) else ends


def _detector_row(
    trial: Trial, baseline: Trial | None, is_positive: Bool[Tensor, " text"], parts: NamedParts
) -> dict[str, object]:
    mean = _mean_auroc(trial, is_positive, parts)
    lower, upper = _finite_interval(auroc_interval(mean.auroc, mean.error, mean.degrees))
    choosing = [
        float(separation(scores[split.choosing].unsqueeze(1), is_positive[split.choosing]).auroc)
        for scores, split in zip(trial.scores, parts.splits(), strict=True)
    ]
    difference = difference_lower = difference_upper = None
    if baseline is not None:
        differences = [
            paired_difference(
                trial.scores[number][parts.by_text == number],
                baseline.scores[number][parts.by_text == number],
                is_positive[parts.by_text == number],
            )
            for number in range(len(parts.names))
        ]
        difference = _mean([each.difference for each in differences])
        errors = [
            _error(each.error, each.degrees, is_positive[parts.by_text == part])
            for part, each in enumerate(differences)
        ]
        error, degrees = (nan, nan) if isnan(mean.error) else _mean_error(errors)
        difference_lower, difference_upper = _finite_interval(difference_interval(difference, error, degrees))
    return {
        "detector": trial.name,
        "kind": trial.kind,
        "auroc": mean.auroc,
        "lower": lower,
        "upper": upper,
        "lowest": mean.lowest,
        "choosing": _mean(choosing),
        "num_features": 0 if trial.whole is None else len(trial.whole.places),
        "difference": difference,
        "difference_lower": difference_lower,
        "difference_upper": difference_upper,
    }


def _held_out(
    row: DetectorAuroc,
    baseline: DetectorAuroc,
    predictions: Records[TextScore],
    is_positive: Bool[Tensor, " text"],
) -> HeldOutAuroc:
    rates = call_rates(torch.from_numpy(predictions.numbers("margin")) > 0, is_positive)
    names = ("auroc", "lower", "upper", "lowest", "difference", "difference_lower", "difference_upper")
    return HeldOutAuroc.single(
        **{name: row[name] for name in names}, baseline=baseline.auroc, **rates._asdict()
    )


def _group_rows(
    trial: Trial, is_positive: Bool[Tensor, " text"], parts: NamedParts
) -> list[dict[str, object]]:
    rows = []
    for number, name in enumerate(parts.names):
        result = _group_separation(trial, number, is_positive, parts)
        ((lower, upper),) = zip(*(end.tolist() for end in result.interval()), strict=True)
        lower, upper = _finite_interval((lower, upper))
        in_group = parts.by_text == number
        rows.append(
            {
                "detector": trial.name,
                "group": name,
                "texts": int(in_group.sum()),
                "positive": int(is_positive[in_group].sum()),
                "auroc": float(result.auroc),
                "lower": lower,
                "upper": upper,
            }
        )
    return rows


def _chance() -> dict[str, object]:
    """The diagonal, which the curves are compared with."""
    rates = RATES.tolist()
    return {
        "curve": CHANCE,
        "detector": CHANCE,
        "group": "",
        "false_positive_rate": rates,
        "true_positive_rate": rates,
    }


def _curves(trial: Trial, is_positive: Bool[Tensor, " text"], parts: NamedParts) -> list[dict[str, object]]:
    """The true positive rate at each of the false positive rates `RATES`."""
    rows: list[dict[str, object]] = []
    for number, name in enumerate(parts.names):
        in_group = parts.by_text == number
        curve = roc_curve(trial.scores[number][in_group], is_positive[in_group])
        last = torch.searchsorted(curve.false_positive_rate, RATES, right=True) - 1
        rows.append(
            {
                "curve": name if trial.kind == ATTENTION else f"{name}, {trial.name}",
                "detector": trial.name,
                "group": name,
                "false_positive_rate": RATES.tolist(),
                "true_positive_rate": curve.true_positive_rate[last].tolist(),
            }
        )
    return rows


def _measures(
    numbers: Float[Tensor, "text feature"],
    is_positive: Bool[Tensor, " text"],
    parts: NamedParts,
    features: Sequence[HeadFeature],
    permutations: int,
    generator: torch.Generator,
) -> Records[SeparatingFeature]:
    """The AUROC of each feature over all texts, with corrected p values and effect sizes."""
    result, ranks = ranked_features(numbers, is_positive)
    lower, upper = result.interval()
    largest = largest_by_chance(ranks, is_positive, parts.groups, count=permutations, generator=generator)
    columns = {
        "auroc": result.auroc,
        "lower": lower,
        "upper": upper,
        "p_value": corrected_p(result.auroc, largest),
        "effect_size": hedges_g(numbers, is_positive),
    }
    return SeparatingFeature.table(
        stack=[feature.stack for feature in features],
        layer=np.array([feature.layer for feature in features]),
        head=np.array([feature.head for feature in features]),
        statistic=[feature.statistic for feature in features],
        **{name: column.numpy() for name, column in columns.items()},
    )


def _strongest(
    measures: Records[SeparatingFeature], numbers: Float[Tensor, "text feature"]
) -> Records[SeparatingFeature]:
    """The best features. If features of a head are equal in all texts, as NAME and NAME_mul may be, only the
    first is included.
    """
    order = np.argsort(-np.abs(measures.numbers("auroc") - 0.5), kind="stable").tolist()
    places = list[int]()
    for place in order:
        row = measures[place]
        is_repeated = any(
            (other.stack, other.layer, other.head) == (row.stack, row.layer, row.head)
            and torch.allclose(numbers[:, place], numbers[:, earlier], rtol=1e-5, atol=1e-7)
            for earlier, other in ((earlier, measures[earlier]) for earlier in places)
        )
        if not is_repeated:
            places.append(place)
        if len(places) == NUM_STRONGEST:
            break
    return measures.taken(places)


def _heads(every: Sequence[HeadFeature], measures: Records[SeparatingFeature]) -> Records[SeparatingHead]:
    """One row per head, with the best of the head's statistics."""
    by_head: dict[tuple[str, int, int], list[SeparatingFeature]] = {
        (feature.stack, feature.layer, feature.head): [] for feature in every
    }
    for row in measures:
        by_head[row.stack, row.layer, row.head].append(row)
    rows = []
    for (stack, layer, head), head_rows in by_head.items():
        best = max(head_rows, key=lambda row: abs(row.auroc - 0.5), default=None)
        names = ("auroc", "lower", "upper", "p_value", "effect_size")
        rows.append(
            {
                "stack": stack,
                "layer": layer,
                "head": head,
                "statistic": "" if best is None else best.statistic,
                **{name: None if best is None else best[name] for name in names},
            }
        )
    return SeparatingHead.rows(rows)


def _predictions(
    trial: Trial,
    table: FeatureTable,
    is_positive: Bool[Tensor, " text"],
    parts: NamedParts,
    measured: Measured,
) -> Records[TextScore]:
    """The prediction for each text from the fit that excluded the text's group."""
    names = measured.negative, measured.positive
    rows = []
    deviations = [float(scores.std()) or 1.0 for scores in trial.scores]
    for place, text in enumerate(table.texts):
        part = int(parts.by_text[place])
        margin = (float(trial.scores[part][place]) - trial.thresholds[part]) / deviations[part]
        is_called, is_truly_positive = margin > 0, bool(is_positive[place])
        rows.append(
            {
                "text": text.line.line,
                "id": text.line.id,
                "group": text.group or parts.names[part],
                "label": names[is_truly_positive],
                "predicted": names[is_called],
                "margin": margin,
                "is_right": int(is_called == is_truly_positive),
                "start": text.words[:START],
                "digest": text.digest,
            }
        )
    return TextScore.rows(rows)


def _fitted(trial: Trial, table: FeatureTable, measured: Measured) -> dict[str, object]:
    assert trial.whole is not None
    return {
        "detector": trial.name,
        "model": measured.model,
        "digest": measured.digest,
        "positive": measured.positive,
        "negative": measured.negative,
        "threshold": trial.whole.threshold,
        "intercept": trial.whole.intercept,
        "penalty": trial.whole.penalty,
        "parts": ",".join(table.texts[0].kinds),
        "num_texts": len(table.texts),
        "measured_on": measured.texts,
    }


def _coefficients(
    trial: Trial, features: Sequence[HeadFeature], usable: UsableFeatures
) -> list[dict[str, object]]:
    """The weights of a detector, with the names that its features have in the whole table."""
    if trial.whole is None:
        return []
    detector = trial.whole.in_places(trial.places).in_places(usable.places)
    numbers = (detector.weights, detector.means, detector.scales)
    return [
        {
            "detector": trial.name,
            **features[place]._asdict(),
            "coefficient": weight,
            "mean": mean,
            "scale": scale,
        }
        for place, weight, mean, scale in zip(
            detector.places, *(each.tolist() for each in numbers), strict=True
        )
    ]
