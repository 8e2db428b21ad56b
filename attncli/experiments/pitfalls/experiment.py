"""The classic mistakes of attention: a line each, or one of them, wrong beside right."""

from attncli.experiments.attention_report import build_report, named
from attncli.experiments.draws import Draws
from attncli.experiments.pitfalls.shown import Shown, Start
from attncli.experiments.pitfalls.table import PITFALLS
from attncli.experiments.reading.texts import Texts
from attncli.experiments.sources import embed
from attncli.report import NamedTensor, Numbers, Report, Row, Table, pair_names
from attncli.spec.pitfalls import PitfallsSpec


def run(spec: PitfallsSpec, texts: Texts, draws: Draws) -> Report:
    """Both computations of one mistake with their figures; without a name a line for each mistake.

    Every mistake starts from the same vectors and the same state of the generator.
    """
    (source,) = embed(spec, texts, draws)
    state = draws.generator.get_state()

    def shown(name: str) -> Shown:
        draws.generator.set_state(state)
        return PITFALLS[name].show(Start(spec, texts.tokens, source.vectors, draws.generator))

    if spec.pitfall is None:
        rows = [_line(name, shown(name)) for name in PITFALLS]
        note = "attn pitfalls NAME shows one, wrong beside right, and how to notice it."
        return build_report(spec, texts, {}, {"pitfalls": Table(rows)}, [note])
    pitfall, both = PITFALLS[spec.pitfall], shown(spec.pitfall)
    statistics = {"wrong": Numbers(both.wrong_figures), "right": Numbers(both.right_figures)}
    notes = [pitfall.mistake, f"It shows in {pitfall.figure}. How to notice it: {pitfall.notice}"]
    if both.wrong_figures[pitfall.figure] == both.right_figures[pitfall.figure]:
        notes.append("Here the number is the same both ways: these settings do not expose the mistake.")
    return build_report(spec, texts, _tensors(both), {**statistics, **both.statistics}, notes)


def _tensors(shown: Shown) -> dict[str, NamedTensor]:
    """The pairs by name; one tensor where both are the same."""
    pairs = {**shown.more, shown.name: (shown.axes, shown.wrong, shown.right)}
    tensors: dict[str, NamedTensor] = {}
    for name, (axes, wrong, right) in pairs.items():
        sides = {name: right} if wrong is right else dict(zip(pair_names(name), (wrong, right), strict=True))
        tensors |= {side: named(tensor, *axes) for side, tensor in sides.items()}
    return tensors


def _line(name: str, shown: Shown) -> Row:
    figure = PITFALLS[name].figure
    return {
        "pitfall": name,
        "figure": figure,
        "wrong": shown.wrong_figures[figure],
        "right": shown.right_figures[figure],
        "mistake": PITFALLS[name].summary,
    }
