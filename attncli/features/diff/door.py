"""`attncli.text_differences`."""

from attncli.features.diff.results import TextDifferences
from attncli.models.loading import in_use
from attncli.models.model_arguments import Model, TextOrReading
from attncli.models.reading_text import reading_for
from attncli.records.arguments import checked


@checked
def text_differences(model: Model, a: TextOrReading, b: TextOrReading) -> TextDifferences:
    """What a model does otherwise on text B than on text A: which heads look elsewhere, what comes next.

    UserError for what the model cannot do; MemoryError.
    """
    from attncli.features.diff.two_texts import text_differences as differences_of_texts

    with in_use(model) as pretrained:
        return differences_of_texts(
            pretrained, reading_for(pretrained, a, "a"), reading_for(pretrained, b, "b")
        )
