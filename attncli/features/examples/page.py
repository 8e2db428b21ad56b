"""The page block that shows the texts of a head's examples."""

from importlib.resources import files

from attncli.features.examples.results import HeadExamples
from attncli.records.report import Report
from attncli.views.page.blocks import PageBlock


def _examples_data(report: Report) -> list[dict[str, object]] | None:
    """Return each example with its tokens, and the weight of its query on each of them."""
    result = report.result_of(HeadExamples)
    examples: list[dict[str, object]] = []
    for example in result.rows:
        tokens = result.tokens_of(example)
        names, weights = [token.token for token in tokens], [token.weight for token in tokens]
        examples.append({**example, "tokens": names, "weights": weights})
    return examples or None


EXAMPLES = PageBlock(
    name="examples",
    label="The texts of the examples",
    folder=files(__package__),
    script="examples.js",
    style="examples.css",
    data=_examples_data,
    is_above=True,
)
