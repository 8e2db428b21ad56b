"""The library function `attncli.text_differences`."""

from attncli.features.diff.results import TextDifferences
from attncli.models.loading import in_use
from attncli.models.model_arguments import Model, TextOrReading
from attncli.models.reading_text import reading_for
from attncli.records.arguments import checked


@checked
def text_differences(model: Model, a: TextOrReading, b: TextOrReading) -> TextDifferences:
    """Compare a model's heads and predictions on text B with those on text A.

    Raises UserError for texts that the model cannot read, and MemoryError if memory runs out.
    """
    from attncli.features.diff.two_texts import text_differences as compare_texts

    with in_use(model) as pretrained:
        return compare_texts(pretrained, reading_for(pretrained, a, "a"), reading_for(pretrained, b, "b"))
