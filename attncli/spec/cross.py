"""The settings of cross-attention: a text for the queries, another for keys and values."""

from pydantic import Field

from attncli.row_statistics import ROW_STATISTICS
from attncli.spec.attention import AttentionSpec
from attncli.spec.fields import Contradictions, Size, TextSource, contradiction
from attncli.spec.models.layers import HeadSpec
from attncli.spec.text import CONTEXT, FileName, Text


class CrossSpec(AttentionSpec, HeadSpec):
    experiment = "cross"
    reads_context = True
    title = "Cross-attention"
    module = "attncli.experiments.cross"
    group = "Input"
    examples = (
        'attn cross --sentence "the cat sleeps" --context "die katze schläft gern"',
        "attn cross --num-tokens 3 --num-context-tokens 5 --embed-dim 8",
    )
    next_steps = ("--explain", "--show scores,output", "-o page.html")

    num_context_tokens: Size | None = Field(
        default_factory=lambda data: data["num_tokens"],
        description="random vectors for keys and values (default: num_tokens)",
    )
    context_file: FileName | None = Field(
        None, description="a text file instead of the context; - reads stdin"
    )
    context: Text | None = Field(
        default_factory=lambda data: None if data["num_context_tokens"] or data["context_file"] else CONTEXT,
        description="the text for the keys and values",
    )

    def measured_of_rows(self) -> tuple[str, ...]:
        """Without those that compare positions: two texts share none."""
        return tuple(name for name in super().measured_of_rows() if not ROW_STATISTICS[name].positional)

    def text_sources(self) -> tuple[TextSource, ...]:
        context = TextSource("context", self.context, self.context_file, self.num_context_tokens)
        return *super().text_sources(), context

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if len(self.given("context", "context_file")) == 2:
            yield contradiction("context", "cannot be combined with context_file: give one", "context_file")
        for key in self.given("context", "context_file"):
            if self.num_tokens:
                message = "cannot be combined with num_tokens: both sides are texts, or both are random"
                yield contradiction(key, message, "num_tokens")
        if self.given("num_context_tokens") and not self.num_tokens:
            message = "needs num_tokens: both sides are texts, or both are random"
            yield contradiction("num_context_tokens", message, "num_tokens")
        if self.file == "-" and self.context_file == "-":
            yield contradiction("context_file", "cannot read stdin, too: file does already", "file")
