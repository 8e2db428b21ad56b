"""`attn similarity`: similarity of the vectors of a sentence."""

from typing import Any

from pydantic import Field

from attncli.records.report import Numbers, Report
from attncli.settings.fields import BYTES_PER_WEIGHT, in_group
from attncli.settings.pages import SampledPage
from attncli.settings.text import Texts, TextSpec


class SimilaritySpec(TextSpec):
    experiment = "similarity"
    examples = ('attn similarity --sentence "the cat sees the other cat"',)
    heading_keys = ("embedding", "embed_dim", "centered", "seed")
    next_steps = ("--centered", "--show statistics", "-o page.html")

    centered: bool = Field(False, description="subtract the mean of all vectors first")

    def needed_bytes(self, num_queries: int, num_keys: int) -> int:
        return (self.batch_size or 1) * num_queries * num_keys * BYTES_PER_WEIGHT

    def single_statistics(self) -> tuple[str, ...]:
        return in_group("similarity", "mean", "variance", "min", "max")


def run(spec: SimilaritySpec, texts: Texts, draws: Any) -> Report:
    """Report the cosine similarity of every two vectors."""
    from torch.nn.functional import normalize

    from attncli.core.summaries import moments
    from attncli.runs.report_parts import build_report, named
    from attncli.runs.runner import embedded

    (source,) = embedded(spec, texts, draws)
    vectors = source.vectors
    if spec.centered:
        vectors = vectors - vectors.mean(dim=-2, keepdim=True)
    units = normalize(vectors, dim=-1)
    similarity = units @ units.mT
    tensors = {"similarity": named(similarity, "query", "key")}
    statistics = {"similarity": Numbers(moments(similarity))}
    return build_report(spec, texts, tensors, statistics, ["1 is the same direction, 0 a right angle."])


PAGE = SampledPage(run=run)
