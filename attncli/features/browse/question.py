"""`attn browse`: explore the heads and tokens of a saved report, or of a model, in the terminal."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.commands.command import (
    COLOR_FLAGS,
    CONFIG,
    DEBUG,
    Command,
    Parameter,
    argument,
    checked_display,
    color_depth,
    given_settings,
    option,
    refuse_flags,
    refuse_unknown,
    setting_options,
)
from attncli.commands.experiment import errors_at
from attncli.commands.output import first_words, progress_line
from attncli.commands.saved_files import ARRAY_FLAGS, opened, refuse_unreadable_format
from attncli.core.names import EFFECTS, PLACE
from attncli.errors import UserError
from attncli.records.report import Report
from attncli.settings import SPECS
from attncli.settings.fields import Given, checked_spec
from attncli.settings.heads import HeadsSpec
from attncli.settings.models import files_read
from attncli.settings.text import Texts, read_texts
from attncli.system.plain_text import readable_tokens
from attncli.views import Display

if TYPE_CHECKING:
    from attncli.features.browse.browser_choice import Addition
    from attncli.models.pretrained import Pretrained

EXAMPLES = (
    "attn browse",
    'attn browse --model ./my-model "the cat sat down because the cat was tired" --head 5:11 --from cat#2',
    'attn heads --maps self "the cat sat because it was tired" -o heads.json',
    "attn browse heads.json",
)
NEEDS_TERMINAL = (
    "browse: needs a terminal: {} is not a terminal (in a pipe, use attn show REPORT --format heatmap)"
)
# Survey settings that would leave out heads or that need many texts.
LEFT_OUT = ("statistic", "top", "table", "names", "texts", "text_group")
LOOKING = "open at this token: cat, cat#2, 5, -1 or last"
HEAD = option("--head", "Open at this head.", "LAYER:HEAD", group="Output", everyday="open at this head")
SAVED_SUFFIXES = (".json", ".jsonl", ".ndjson", ".npz", ".npy", ".safetensors", ".pt", ".pth")
WHOLE_TOKENS = 256
"""Texts up to this length keep the full weights of every head, which the browser scrolls.

Longer texts have pooled maps.
"""
TEXT = argument(
    "text",
    "The text that the model reads; or a saved report (.json, .jsonl) or an array (.npz, .npy, "
    ".safetensors, .pt), as in attn show.",
    "TEXT|REPORT",
    required=False,
    reads_file=True,
)


def is_file(text: str) -> bool:
    """Return True if the argument names a saved file, whether or not the file exists."""
    has_suffix = Path(text).suffix in SAVED_SUFFIXES and not any(map(str.isspace, text))
    return has_suffix or os.path.isfile(text)  # noqa: PTH113 - Path's raises if a text is too long for a name


def check_terminal() -> None:
    """Raise UserError if the browser is not installed, or cannot be displayed or controlled here."""
    if find_spec("textual") is None:
        raise UserError('browse: needs: pip install "attncli[tui]"')
    streams = {"standard input": sys.stdin, "standard output": sys.stdout, "standard error": sys.stderr}
    for name, stream in streams.items():
        if stream is None or not stream.isatty():
            raise UserError(NEEDS_TERMINAL.format(name))
    if os.environ.get("TERM") == "dumb":
        raise UserError("browse: needs a terminal that can move its cursor (TERM is dumb)")


def saved_reports(file: str, flags: dict[str, Any], arrays: dict[str, str | None]) -> tuple[Report, ...]:
    """Read the reports in a file. Raises UserError for flags that require a model."""
    refuse_unreadable_format(file, "browse", suggests_models=True)
    refuse_flags(flags, f"needs a model, but {file} is a saved report: omit it")
    return opened(file, **arrays).reports


def survey_spec(config: str | None, flags: dict[str, Any]) -> "tuple[HeadsSpec, dict[str, Given]]":
    """Return the settings for a survey of a model, with one map per head."""
    settings = given_settings("heads", config, flags)
    for key in settings:
        is_left_out = key in LEFT_OUT or key not in HeadsSpec.model_fields
        if is_left_out and settings[key].value is not None:
            raise UserError(
                settings[key].line(
                    key, "only applies to attn heads: attn browse shows every head on one text"
                )
            )
    maps = settings.setdefault("maps", Given("auto", "attn browse"))
    if maps.value == "none":
        raise UserError(maps.line("maps", "must be auto, self, cross or encoder (got none)"))
    return checked_spec(HeadsSpec, settings), settings


class OpenModel:
    """An open model with its text, and the measurements that the browser needs.

    `looking` names the token whose row is shown first; `position` is its position.
    """

    def __init__(self, spec: "HeadsSpec", pretrained: "Pretrained", looking: Sequence[str] = ()) -> None:
        self.spec, self.pretrained, self.looking = spec, pretrained, looking
        self.text = ""
        self.position: int | None = None

    def survey(self, texts: Texts) -> Report:
        """Survey the heads on a text or on the probe."""
        from torch import Generator

        from attncli.features.heads.question import read, report_each
        from attncli.models.loading import measuring
        from attncli.models.token_names import check_tokens_named, positions_named

        spec, pretrained = self.spec, self.pretrained
        self.reading = read(spec, texts, pretrained, Generator().manual_seed(spec.seed))
        self.text = texts.text or ""
        whole = self.reading.in_words().text
        check_tokens_named(self.looking, [whole], pretrained, key="from")
        self.position = next(iter(positions_named(self.looking, whole, pretrained)), None)
        with measuring(pretrained.name, pretrained.whole):
            (report,) = report_each([spec], [self.reading], pretrained, None, whole_tokens=WHOLE_TOKENS)
        return report

    def look(self, text: str) -> Report:
        """Survey another text, which replaces the model's current text."""
        before, self.looking = self.spec, ()
        self.spec = before.model_copy(
            update={"sentence": text, "file": None, "probe": None, "num_tokens": None}
        )
        try:
            return self.survey(Texts(text=text, context=before.context))
        except UserError:
            self.spec = before
            raise

    def without(self, heads: Sequence[str]) -> Mapping[str, float]:
        """Return the effects of removing all of these heads together."""
        from attncli.features.ablate.door import ablate

        result = ablate(
            self.pretrained, self.reading, heads=heads, jointly=len(heads) > 1, seed=self.spec.seed
        )
        effects = result.joint or result.heads[0]
        return {name: number for name in EFFECTS if isinstance(number := effects.get(name), float)}

    def addition(self, head: str) -> "Addition":
        """Return the contribution of a head to the logit of the most likely next token."""
        from attncli.features.browse.browser_choice import Addition
        from attncli.features.why.door import why

        pretrained = self.pretrained
        result = why(pretrained, self.reading, head=head)
        assert result.keys is not None
        rank, chosen = next(
            (rank, row) for rank, row in enumerate(result.ranked(), 1) if row.name == result.head
        )
        spelling, tokens = pretrained.spelling_of(self.reading.text), self.reading.text.tokens
        labels = readable_tokens(tokens, spelling)
        return Addition(
            pretrained.text_of(result.ids) or pretrained.labels(result.ids)[0],
            result.parts.logit,
            chosen.contribution or 0.0,
            rank,
            len(result.heads),
            [
                (f"{place} {label}", key.contribution or 0.0)
                for place, (label, key) in enumerate(zip(labels, result.keys, strict=True))
            ],
        )


def opened_model(spec: "HeadsSpec", texts: Texts, looking: Sequence[str] = ()) -> tuple[OpenModel, Report]:
    """Open the model, with its prediction head if it has one, and survey its heads on the text."""
    from attncli.models.folder import quiet_transformers
    from attncli.runs.runner import check_before_reading, model_of, page_of

    check_before_reading(spec)
    with progress_line() as progress:
        progress.begin(first_words([spec.model_source()]))
        page_of(spec)
        quiet_transformers()  # its messages would overwrite the screen
        model = OpenModel(spec, model_of(spec, progress, with_head=True), looking)
        return model, model.survey(texts)


def browse_reports(
    reports: tuple[Report, ...],
    name: str,
    sort: str | None,
    display: Display,
    model: OpenModel | None = None,
    head: str | None = None,
) -> int:
    """Browse until the user quits. Raises UserError if there are no maps or the head is unknown."""
    from attncli.features.browse.browser import browse
    from attncli.features.browse.browser_choice import Choice, grids
    from attncli.views.matrices import colour_scale
    from attncli.views.texts import readable

    reports = tuple(map(readable, reports))
    maps = [grid for report in reports for grid in grids(report)]
    if not maps:
        experiment = reports[0].experiment
        drawn_maps = SPECS[experiment].drawn_maps if experiment in SPECS else None
        heads = "" if drawn_maps is None else f" (save them with attn {experiment} --maps {drawn_maps})"
        raise UserError(f"{name}: has no maps between queries and keys to browse{heads}")
    if sort is not None:
        refuse_unknown("--sort", sort, maps[0].statistics)
    report_sort = reports[0].spec.get("sort")
    if sort is None and report_sort in maps[0].statistics:
        sort = report_sort
    choice = Choice(
        maps,
        scale=colour_scale(display.scale_colors, next(iter(maps[0].maps.values())).axes),
        skip_first_keys=display.skip_first_keys,
        sort=sort,
        smallest_first=sort == report_sort and reports[0].spec.get("ascending") is True,
    )
    if head is not None:
        names = [maps[0].head_name(number).removeprefix("head ") for number in range(maps[0].num_places)]
        if head not in names:
            raise UserError(f"--head: must be from {names[0]} to {names[-1]} for {name} (got {head})")
        choice.choose_head(names.index(head))
    if model is not None and model.position is not None:
        choice.look_from(model.position)
    return browse(choice, colors=display.colors, model=model)


def _pop_looking(flags: dict[str, Any]) -> list[str]:
    """Remove the tokens of --from from the flags; without --to, they only choose the token to show first."""
    is_ranked = flags.get("to") or any(kind.on_grid for _, kind, _ in files_read(flags))
    return [] if is_ranked else flags.pop("from", None) or []


def command(name: str, summary: str) -> Command:
    """Return the command, with the flags of the survey except those that leave out heads."""
    left_out = (*LEFT_OUT, HEAD.name)
    settings = [
        replace(each, everyday=LOOKING) if each.name == "from" else each
        for each in setting_options(HeadsSpec)
        if each.name not in left_out
    ]

    def run(
        text: str | None,
        config: str | None,
        color: str,
        scale_colors: str | None,
        skip_first_keys: str | None,
        sentence: str | None,
        sort: str | None,
        head: str | None,
        **flags: Any,
    ) -> int:
        check_terminal()
        is_saved = text is not None and is_file(text)
        display = checked_display(color, scale_colors, skip_first_keys)
        arrays = {each.name: flags.pop(each.name) for each in ARRAY_FLAGS}
        colored = replace(display, colors=color_depth(color, True))
        if text is not None and is_saved:
            reports = saved_reports(text, {"config": config, "sentence": sentence, **flags}, arrays)
            return browse_reports(reports, text, sort, colored, head=head)
        refuse_flags(arrays, "only applies to a saved array: add the file of the array")
        if text is not None and sentence is not None:
            raise UserError(f"--sentence: cannot be combined with the argument ({text}): use one of them")
        flags |= {"sentence": sentence or text, "sort": sort}
        if head is not None and PLACE.fullmatch(head) is None:
            raise UserError(f"--head: must be a layer and a head, such as 5:11 (got {head})")
        looking = _pop_looking(flags)
        spec, settings = survey_spec(config, flags)
        with errors_at(spec, settings, config):
            model, report = opened_model(spec, read_texts(spec), looking)
        order = report.spec.get("sort")
        return browse_reports((report,), model.pretrained.name, order, colored, model, head)

    parameters: list[Parameter] = [TEXT, HEAD, *settings, *ARRAY_FLAGS, CONFIG, *COLOR_FLAGS, DEBUG]
    return Command(name, summary, run, parameters, EXAMPLES)
