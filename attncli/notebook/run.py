"""Experiments from Python, by name and settings, with reports that display themselves in a notebook."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import cached_property
from html import escape
from io import StringIO
from keyword import iskeyword
from os import PathLike, fspath
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_origin

from attncli.errors import NoSuchName, UserError
from attncli.models.folder import check_packages
from attncli.records.arguments import is_list, listed, one_of
from attncli.records.report import Numbers, Report, Statistic, Table, Tensors
from attncli.records.token_ids import text_or_ids
from attncli.runs.keys import TEXT_KEYS
from attncli.runs.runner import Session, import_what_runs, run_loaded
from attncli.settings import SPECS, every_setting_of, spec_class_of
from attncli.settings.fields import Given, Spec, checked_spec, values_of, with_maps
from attncli.settings.heads import HeadsSpec
from attncli.settings.models import ModelSpec
from attncli.views import TEXT_WIDTH, Display, load_view

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from attncli.models.pretrained import Pretrained


MAX_CELL_BYTES = 2_500_000
"""A Jupyter server drops a kernel's output beyond 1 MB per second, averaged over 3 seconds."""

STYLE = (
    "box-sizing: border-box; width: 100%; height: 720px; max-height: max(90vh, 540px); resize: vertical; "
    "border: 1px solid #8886; border-radius: 5px"
)
"""A frame does not know its page's length: longer pages scroll, and dragging the corner enlarges the frame.

The limit is not below 540 px, because Colab's outputs are frames as high as their content, and 90 % of that
would shrink to nothing.
"""

TRUST = "To see the page with its maps, run this cell or trust the notebook."
HIDE_TEXT = "<style>.attn-text:has(+ div > iframe) { display: none }</style>"
"""Applies only to this cell: the text of another cell whose frame was removed stays."""

HIDDEN_BY_NBCONVERT = "hidden lm-Widget lm-mod-hidden"
"""Classes that the stylesheets of nbconvert's templates (classic, lab, reveal) hide.

`nbconvert --sanitize-html` keeps classes, removes styles, and shows the source of a frame as text.
"""


PartOfReport = TypeVar("PartOfReport", bound=Statistic)


class _NamedStatistics(dict[str, Statistic]):
    """Statistics, by name."""

    def __missing__(self, name: str) -> Statistic:
        raise NoSuchName("statistic", name, self)


class NotebookReport(Report):
    """A Report as the functions of `attncli` return it: the same fields, and methods for viewing them.

    A name that the report lacks raises NoSuchName, a UserError and a KeyError that lists the existing names;
    `statistics.get(name)` does not raise.
    """

    @classmethod
    def of(cls, report: Report) -> "NotebookReport":
        """Return a report as a NotebookReport."""
        return cls(**{**_fields_of(report), "tensors": Tensors(report.tensors)})

    @cached_property
    def statistics(self) -> Mapping[str, Statistic]:
        """The numbers and tables of the result, by their names in JSON."""
        return _NamedStatistics(self.result.statistics())

    def table(self, name: str) -> Table:
        """Return the statistic of that name as a table."""
        return self._statistic(name, Table, "table")

    def numbers(self, name: str) -> Numbers:
        """Return the statistic of that name as numbers."""
        return self._statistic(name, Numbers, "numbers")

    def tensors_of(self, group: str) -> Tensors:
        """Return the tensors of a group of statistics, `rows` or `keys`."""
        return self._statistic(group, Tensors, "group of tensors")

    def _statistic(self, name: str, kind: type[PartOfReport], what: str) -> PartOfReport:
        of_kind = {key: each for key, each in self.statistics.items() if isinstance(each, kind)}
        if name not in of_kind:
            raise NoSuchName(what, name, of_kind)
        return of_kind[name]

    def to_html(self) -> str:
        """Return the page that `-o page.html` writes, which is self-contained and opens without a network."""
        return _written("html", self, Display())

    def __dir__(self) -> Iterable[str]:
        """List only the public attributes, for completion in notebooks."""
        hidden = (name for name in super().__dir__() if name.startswith("__"))
        return [*hidden, *FOR_USERS]

    def __repr__(self) -> str:
        """Return the first screen, as wide as the terminal, without colour."""
        return _screen(self, get_terminal_size().columns)

    def _repr_html_(self) -> str:
        """Return the first screen as text, and the page in an isolated frame that takes its place.

        Neither the page nor the notebook can reach into the other. In a notebook that is not trusted or that
        nbconvert sanitises, only the text remains.
        """
        cell = _cell(self, self.to_html())
        if len(cell) <= MAX_CELL_BYTES:
            return cell
        advice = (
            f"The maps are left out: with them, this cell would have {len(cell) / 1e6:.1f} MB, "
            "too much for a Jupyter server. to_html() returns the whole page, which you can write to a file."
        )
        small = replace(self, tensors={}, notes=(*self.notes, advice))
        return _cell(small, small.to_html())


FOR_USERS = (
    *("table", "numbers", "tensors", "statistics", "result", "to_html", "to_data"),
    *("experiment", "spec", "tokens", "context_tokens", "about", "how_to_read", "notes", "written", "steps"),
)
"""The attributes of a report that completion lists."""


def _fields_of(report: Report) -> dict[str, Any]:
    """Return the fields of a report, without cached values."""
    return {field.name: getattr(report, field.name) for field in fields(Report)}


def _written(view: str, report: Report, display: Display) -> str:
    stream = StringIO()
    # Views ask for fields that a report may lack.
    load_view(view)([Report(**_fields_of(report))], stream, display)
    return stream.getvalue()


def _screen(report: Report, width: int) -> str:
    """Return the first screen as text, without colour."""
    screen = _written("table", report, Display(width=width))
    return "\n".join(line.rstrip(" ") for line in screen.split("\n")).rstrip("\n")


def _cell(report: Report, page: str) -> str:
    """Return the first screen as text, which is hidden while the framed page is displayed below it."""
    screen = escape(_screen(report, TEXT_WIDTH))
    text = f'<pre class="attn-text"><code>{screen}\n\n{TRUST}</code></pre>'
    framed = f"{HIDE_TEXT}{_frame(report, page)}"
    return f'{text}<div class="{HIDDEN_BY_NBCONVERT}" style="display: block !important">{framed}</div>'


def _frame(report: Report, page: str) -> str:
    """Return an isolated frame: scripts may run, but without an origin, cookies, storage or popups."""
    return (
        f'<iframe title="attn {escape(report.experiment)}" sandbox="allow-scripts" style="{STYLE}" '
        f'srcdoc="{escape(page)}"></iframe>'
    )


OF_LOADING = ("device", "allow_download")
"""The settings that determine how a model is loaded."""


def run(
    experiment: str,
    *,
    model: "str | PathLike[str] | PreTrainedModel | Pretrained | None" = None,
    tokenizer: "str | PreTrainedTokenizerBase | None" = None,
    **settings: Any,
) -> NotebookReport:
    """Return the report of an experiment's command: `run("self", sentence="the cat", causal=True)`.

    `experiment` is a command such as self, heads or scale-demo; settings are its flags with underscores
    (docs/settings.md; `from_` is --from), and None means the default. A list may be a string with commas. As
    with `-o page.html`, `heads` keeps what each head looks at; maps="none" omits this.

    `model` is a folder, a model from `open_model`, or a loaded transformers model with its `tokenizer`. The
    model runs on its device in evaluation mode and is left unchanged. Half precision is computed in float32.

    `report.tensors["weights"].values` is an array with the axes in `.axes`, and
    `report.tensors_of("rows")["entropy"].values` has one number in nats for each query (docs/report.md).

    Raises UserError, with one line for each wrong setting, and MemoryError if memory runs out.
    """
    if model is None or isinstance(model, str | PathLike):
        spec = _checked(experiment, {"model": model, "tokenizer": tokenizer, **settings})
        # Imported here and not by the runner, which would switch off the caller's garbage collection.
        import_what_runs(spec)
        return NotebookReport.of(Session().run(spec, reseed=True))
    return _run_loaded(experiment, model, tokenizer, settings)


def _checked(experiment: str, settings: Mapping[str, Any]) -> Spec:
    """Return the settings as a Spec. Raises UserError with every error, each naming its keyword."""
    try:
        experiment = one_of(SPECS)(experiment)
    except ValueError as error:
        raise UserError(f"experiment: {error}") from None
    fields = every_setting_of(experiment).model_fields
    given = {}
    token_ids: dict[str, str] = {}
    for name, value in settings.items():
        key = name.removesuffix("_") if iskeyword(name.removesuffix("_")) else name
        if key in TEXT_KEYS and isinstance(value, Mapping):
            try:
                token_ids[key] = value = text_or_ids(value)
            except ValueError as error:
                raise UserError(f"{name}: {error}") from None
        if value is not None:
            given[key] = Given(_setting(fields.get(key), value), name, is_flag=True)
    spec_class = spec_class_of(experiment, values_of(given))
    spec = checked_spec(spec_class, with_maps(spec_class, given, "attncli.run"))
    return spec.model_copy(update=token_ids)  # whose fields are plain text


def _setting(field: "FieldInfo | None", value: Any) -> Any:
    """Convert a value as in a config file: a path to a string, and the value of a list setting to a list."""
    if isinstance(value, PathLike):
        value = fspath(value)
    if field is None or get_origin(field.annotation) is not list:
        return value
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    if isinstance(value, list | tuple):
        return value
    return listed(value) if is_list(value) else [value]


def _run_loaded(
    experiment: str, model: "PreTrainedModel | Pretrained", tokenizer: object, settings: Mapping[str, Any]
) -> NotebookReport:
    mistakes = [
        f"{key}: cannot be changed for a model that is already loaded: omit this setting"
        for key in OF_LOADING
        if settings.get(key) is not None
    ]
    try:
        # A Spec must name a folder, and this one always exists.
        spec = _checked(experiment, {**settings, "model": HeadsSpec.default_model})
    except UserError as error:
        mistakes += error.lines
    if mistakes:
        raise UserError(*mistakes)
    is_opened = hasattr(model, "is_in_use")  # loaded by open_model, which knows its tokenizer
    if is_opened and tokenizer is not None:
        raise UserError("tokenizer: a model from open_model already has a tokenizer: omit this argument")
    name = getattr(model, "name" if is_opened else "name_or_path", "") or type(model).__name__
    named = cast(ModelSpec, spec.model_copy(update={"model": name}))
    check_packages()
    return NotebookReport.of(run_loaded(named, model, tokenizer))
