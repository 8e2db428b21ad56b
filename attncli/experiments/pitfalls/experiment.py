"""The classic mistakes of attention: one line each, or one of them with wrong beside right."""

from attncli.experiments.attention_report import build_report
from attncli.experiments.draws import Draws
from attncli.experiments.pitfalls.comparison import Comparison, Start
from attncli.experiments.pitfalls.table import PITFALLS
from attncli.experiments.reading.texts import Texts
from attncli.experiments.sources import embed
from attncli.report import Report, Row, Statistic, Table
from attncli.spec.pitfalls import PitfallsSpec


def run(spec: PitfallsSpec, texts: Texts, draws: Draws) -> Report:
    """Both computations of one mistake with their metrics; without a name, one line per mistake.

    Every mistake starts from the same vectors and the same state of the generator.
    """
    (source,) = embed(spec, texts, draws)
    state = draws.generator.get_state()

    def compared(name: str) -> Comparison:
        draws.generator.set_state(state)
        return PITFALLS[name].compare(Start(spec, texts.tokens, source.vectors, draws.generator))

    if spec.pitfall is None:
        rows = Table(_line(name, compared(name)) for name in PITFALLS)
        note = "attn pitfalls NAME shows one, wrong beside right, and how to notice it."
        return build_report(spec, texts, {}, {"pitfalls": rows}, [note])
    pitfall, both = PITFALLS[spec.pitfall], compared(spec.pitfall)
    notes = [pitfall.mistake, f"It shows in {pitfall.metric}. How to notice it: {pitfall.notice}"]
    if both.wrong[pitfall.metric] == both.right[pitfall.metric]:
        notes.append("Here the number is the same both ways: these settings do not expose the mistake.")
    statistics: dict[str, Statistic] = {"wrong": both.wrong, "right": both.right, **both.tables}
    return build_report(spec, texts, both.tensors, statistics, notes)


def _line(name: str, both: Comparison) -> Row:
    metric = PITFALLS[name].metric
    return {
        "pitfall": name,
        "figure": metric,
        "wrong": both.wrong[metric],
        "right": both.right[metric],
        "mistake": PITFALLS[name].summary,
    }
