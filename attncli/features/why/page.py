"""The page blocks of `attn why`: a logit as a sum over the layers, and the score of a head, key by key."""

from importlib.resources import files

from attncli.features.why.results import ScoreParts
from attncli.records.report import Report, plain
from attncli.views.page.blocks import PageBlock


def _data(report: Report) -> dict[str, object] | None:
    """Return the contributions to the score of each key, or None if the report has no such contributions."""
    score, tensors = report.result_of(ScoreParts), report.tensors_of("key_parts")
    if not tensors:
        return None
    return {
        "query": score.query,
        "key": score.key,
        "weights": plain(score.keys.column("weight")),
        "parts": [row.part for row in score.parts or ()],
        **{name: plain(tensor.values) for name, tensor in tensors.items()},
    }


LOGIT = PageBlock(
    name="logit",
    label="The logit as a sum over the layers",
    folder=files(__package__),
    script="logit.js",
    style="logit.css",
    is_above=True,
)
SCORE = PageBlock(
    name="score",
    label="The score, key by key",
    folder=files(__package__),
    script="score.js",
    style="score.css",
    data=_data,
    is_above=True,
)
