"""`attn heads --head LAYER:HEAD --examples N`: the texts where a statistic of one head is strongest."""

from attncli.features.heads.door import examples
from attncli.models.pretrained import Pretrained
from attncli.models.text_files import ManyTexts, TextLine
from attncli.plain_text import counted
from attncli.records.columns import few_notes
from attncli.report import Report
from attncli.report_parts import WORDS_NOTE, build_report
from attncli.settings.heads import HeadsSpec
from attncli.settings.text import Texts

HOW_TO_READ = "Each example is another text, at its own strongest (weakest, nearest to the median) row."


def report_examples(spec: HeadsSpec, many: ManyTexts[TextLine], pretrained: Pretrained) -> Report:
    """The examples of a head, and the weights of their queries on the tokens of their texts."""
    result = examples(
        pretrained,
        many,
        "{}:{}".format(*spec.chosen_head()),
        str(spec.sort),
        count=int(spec.num_examples or 0),
        words=spec.words,
        skip_sink=spec.skip_sink,
    )
    return build_report(
        spec,
        Texts(),
        {},
        result,
        [*([WORDS_NOTE] if spec.words else []), *few_notes(result.num_texts), *result.notes],
        about=f"{pretrained.name}, head {spec.head}: {spec.sort}, "
        f"mean over {counted(result.num_texts, 'text')}.",
        how_to_read=HOW_TO_READ,
    )
