"""What Python calls: an experiment by its name and settings, and the survey of a loaded model's heads."""

from collections.abc import Mapping
from importlib import import_module
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, cast

from attncli.api.notebook_report import NotebookReport
from attncli.errors import UserError, nearest
from attncli.inputs.models.model_folder import check_packages
from attncli.running.session import MODEL_RUNS, Session, module_of
from attncli.spec import SPECS
from attncli.spec.config.validation import Given, checked_spec, with_maps
from attncli.spec.fields import Spec
from attncli.spec.models.heads import HeadsSpec
from attncli.spec.models.pretrained import ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

OF_LOADING = ("device", "allow_download")
"""The settings that say how a model is loaded."""


def run(
    experiment: str,
    *,
    model: "str | PathLike[str] | PreTrainedModel | None" = None,
    tokenizer: "str | PreTrainedTokenizerBase | None" = None,
    **settings: Any,
) -> NotebookReport:
    """The report of an experiment, as its command gives it: `run("self", sentence="the cat", causal=True)`.

    `experiment` is a command such as self, heads or scale-demo; settings are its flags with underscores
    (docs/settings.md), and None is the default. As with `-o page.html` heads keeps what each head looks at;
    maps="none" leaves it out.

    `model` is a folder, or a transformers model that is loaded; then `tokenizer` is its tokenizer. It runs
    where it is, in evaluation mode, and is left as it was. Half precision is attended to in float32.

    `report.tensors["weights"].values` is an array with the axes in `.axes`, and
    `report.tensors_of("rows")["entropy"].values` has a number in nats for each query (docs/report.md).

    UserError with one line for each wrong setting; MemoryError.
    """
    if model is None or isinstance(model, str | PathLike):
        spec = _checked(experiment, {"model": model, "tokenizer": tokenizer, **settings})
        # Imported here, and not by load_experiment, which would switch off the caller's garbage collection.
        import_module(module_of(spec))
        return NotebookReport.of(Session().run(spec, reseed=True))
    return _run_loaded(experiment, model, tokenizer, settings)


def heads(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", text: str | None = None, **settings: Any
) -> NotebookReport:
    """What each head of a loaded model does on a text: `run("heads", model=model, sentence=text, ...)`.

    Without a text the model reads random tokens twice, which shows induction heads. `report.table("heads")`
    has one row per head: entropy in nats, distance in tokens, the other scores between 0 and 1.
    """
    return run("heads", model=model, tokenizer=tokenizer, sentence=text, **settings)


def _checked(experiment: str, settings: Mapping[str, Any]) -> Spec:
    """The settings as a Spec; UserError with every mistake, each at its keyword."""
    if experiment not in SPECS:
        known = ", ".join(SPECS)
        raise UserError(f"experiment: must be one of {known} (got {experiment}){nearest(experiment, SPECS)}")
    given = {
        key: Given(fspath(value) if isinstance(value, PathLike) else value, key, is_flag=True)
        for key, value in settings.items()
        if value is not None
    }
    return checked_spec(SPECS[experiment], with_maps(SPECS[experiment], given, "attncli.run"))


def _run_loaded(
    experiment: str, model: "PreTrainedModel", tokenizer: object, settings: Mapping[str, Any]
) -> NotebookReport:
    mistakes = [
        f"{key}: cannot be combined with a loaded model, which is there already"
        for key in OF_LOADING
        if settings.get(key) is not None
    ]
    try:
        # A Spec names a folder: this one is always there.
        spec = _checked(experiment, {**settings, "model": HeadsSpec.default_model})
    except UserError as error:
        mistakes += error.lines
    if mistakes:
        raise UserError(*mistakes)
    name = getattr(model, "name_or_path", "") or type(model).__name__
    named = cast(ModelSpec, spec.model_copy(update={"model": name}))
    check_packages()
    return NotebookReport.of(import_module(MODEL_RUNS).run_loaded(named, model, tokenizer))
