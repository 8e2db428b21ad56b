"""A command for an experiment: its flags are the fields of its Spec, so that every flag is a YAML key."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from attncli.cli.output import Color, Debug, Destination, Format, Output, Precision, ScaleColors, SkipSink
from attncli.errors import UserError
from attncli.spec import SPECS, Spec
from attncli.spec.config_file import NO_PREVIOUS, ConfigFile
from attncli.spec.resolved import resolved_yaml
from attncli.spec.text import ALTERNATIVES
from attncli.spec.validation import Given, build_spec
from attncli.views import PICTURES

if TYPE_CHECKING:
    from attncli.report import Report

EXAMPLES = {
    "average": """
  attn average --sentence "the cat walks on the street" --embed-dim 2
  attn average --num-tokens 8 --batch-size 4 --embed-dim 2 --seed 1337
  attn average --embedding integers --num-tokens 3 --embed-dim 2 --aggregate sum""",
    "self": """
  attn self --sentence "the cat walks on the street"
  attn self --num-tokens 8 --embed-dim 32 --head-dim 16 --causal
  attn self --projection none --scale none --embed-dim 2 --format json
  attn self --causal --explain --token 3
  attn self --file book.txt --embedding glove.6B.50d.txt --unknown zero""",
    "multihead": """
  attn multihead --sentence "the cat walks on the street" --num-heads 4
  attn multihead --num-heads 8 --num-kv-heads 2 --causal
  attn multihead --explain --head 2 --token 0
  attn multihead --embedding glove.6B.50d.txt --head-dim 50 -o heads.json""",
    "cross": """
  attn cross --sentence "the cat sleeps" --context "die katze schläft gern"
  attn cross --num-tokens 3 --num-context-tokens 5 --embed-dim 8""",
    "scale-demo": """
  attn scale-demo --head-dim 16
  attn scale-demo --head-dim 16 --head-dim 64 --head-dim 256
  attn scale-demo --logits 0.1,-0.2,0.3 --factors 1,8,64""",
    "norm": """
  attn norm --batch-size 32 --num-features 100
  attn norm --kind layer --explain
  attn norm --kind layer --variance biased --format json""",
    "heads": """
  attn heads
  attn heads --model ./my-model --sentence "the cat sat because it was tired" --sort entropy --top 10
  attn heads --model ./my-model --statistic previous_token --precision 2
  attn heads --model ./my-model --file book.txt --skip-sink 1 -o heads.csv""",
    "pitfalls": """
  attn pitfalls
  attn pitfalls softmax-twice --num-tokens 8
  attn pitfalls merged-heads --format json""",
}

# The setting of an experiment that may stand without its flag.
ARGUMENTS = {"pitfalls": "pitfall"}

MAX_CHOICES_SHOWN = 8

Config = Annotated[
    str | None,
    typer.Option("--config", help="Read settings from a YAML file; flags go before.", metavar="FILE"),
]
ShowConfig = Annotated[
    bool, typer.Option("--show-config", help="Print the resolved settings, each with its origin, and exit.")
]
Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="The mistake to show.")]


def flag_name(key: str) -> str:
    """`--head-dim` for `head_dim`."""
    return f"--{key.replace('_', '-')}"


def _choices(annotation: Any) -> list[str]:
    """The words that a setting may be, where it is one of some."""
    if annotation is Any or isinstance(annotation, type):
        return []
    if get_origin(annotation) is not None and all(isinstance(choice, str) for choice in get_args(annotation)):
        return list(get_args(annotation))
    return [choice for part in get_args(annotation) for choice in _choices(part)]


def _kinds(annotation: Any) -> set[type]:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return {annotation}
    return {kind for part in get_args(annotation) for kind in _kinds(part)}


def metavar(key: str, field: FieldInfo) -> str:
    """How help names the values of a setting: its choices, a kind of number, a file or text."""
    choices, kinds = _choices(field.annotation), _kinds(field.annotation)
    numbers = ["NUMBER"] if float in kinds else ["INTEGER"] if int in kinds else []
    if key == "projection_order":
        return ",".join(choices)
    if len(choices) > MAX_CHOICES_SHOWN:
        return "STATISTIC" if "entropy" in choices else "NAME"
    if choices or numbers:
        return "|".join([*choices, *numbers]) + (",..." if _is_list(field) else "")
    return "FILE" if key.endswith("file") else "TEXT"


def _is_list(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is list


def default_text(field: FieldInfo) -> str:
    """` [default: 16]`, where a setting has one that follows from no other setting."""
    value = field.default
    if field.is_required() or value in (None, []) or field.default_factory is not None:
        return ""
    if isinstance(value, list):
        return f" [default: {','.join(f'{v:g}' if isinstance(v, float) else str(v) for v in value)}]"
    return f" [default: {str(value).lower() if isinstance(value, bool) else value}]"


def option(key: str, field: FieldInfo) -> inspect.Parameter:
    """The flag of a setting, None where it is not given; its value stays text, which the Spec reads."""
    name, description = flag_name(key), f"{field.description}{default_text(field)}"
    annotation: Any
    if field.annotation is bool:
        flag = typer.Option(f"{name}/--no-{key.replace('_', '-')}", help=description, show_default=False)
        annotation = bool | None
    else:
        choices = _choices(field.annotation)
        flag = typer.Option(
            name,
            help=description,
            metavar=metavar(key, field),
            show_default=False,
            autocompletion=(lambda: choices) if choices else None,
        )
        annotation = list[str] | None if _is_list(field) else str | None
    return inspect.Parameter(
        key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[annotation, flag]
    )


def given_flags(spec_class: type[Spec], flags: dict[str, Any]) -> dict[str, Given]:
    """The flags that were given; the values of a list may be repeated flags or stand between commas."""
    given = {}
    for key, value in flags.items():
        if value is None:
            continue
        if isinstance(value, list):
            if not value:
                continue
            value = [part.strip() for text in value for part in text.split(",")]
        given[key] = Given(value, flag_name(key), is_flag=True)
    return given


def given_settings(name: str, config: str | None, flags: dict[str, Any]) -> dict[str, Given]:
    """What a config file and the flags say, flags first."""
    given = ConfigFile(Path(config)).single(name) if config is not None else {}
    from_flags = given_flags(SPECS[name], flags)
    for group in ALTERNATIVES:
        if from_flags.keys() & group:
            given = {key: value for key, value in given.items() if key not in group}
    return given | from_flags


def checked_spec(name: str, given: dict[str, Given]) -> Spec:
    """The Spec of a single experiment; UserError with every mistake."""
    spec = build_spec(SPECS[name], given)
    if "embedding" in given and given["embedding"].value == "previous":
        raise UserError(given["embedding"].line("embedding", NO_PREVIOUS))
    return spec


@contextmanager
def running(spec: Spec) -> "Iterator[Iterator[Report]]":
    """The report of one experiment, made when it is asked for; progress on standard error."""
    from attncli.batch.plan import Item
    from attncli.batch.serial import run_items
    from attncli.cli.progress import progress_line

    def fail(item: Item, error: UserError) -> None:
        raise error

    with progress_line() as progress:
        yield run_items([Item(spec)], fail, progress)


def run_experiment(
    name: str, config: str | None, show_config: bool, flags: dict[str, Any], to: Destination
) -> int:
    """flags and YAML -> Spec -> Report -> view."""
    given = given_settings(name, config, flags)
    if to.view in PICTURES and "maps" in SPECS[name].model_fields and "statistic" not in given:
        given.setdefault("maps", Given("self", f"the {to.view} view"))
    spec = checked_spec(name, given)
    if show_config:
        typer.echo(resolved_yaml(spec, given), nl=False)
        return 0
    with running(spec) as reports:
        to.write(reports)
    return 0


def build(name: str, summary: str) -> Any:
    """The Typer command of an experiment."""
    fields = SPECS[name].model_fields

    def command(
        *,
        config: Config = None,
        show_config: ShowConfig = False,
        format: Format = None,
        output: Output = None,
        precision: Precision = "4",
        color: Color = "auto",
        scale_colors: ScaleColors = "linear",
        skip_sink: SkipSink = None,
        debug: Debug = False,
        argument: Name = None,
        **flags: Any,
    ) -> int:
        if argument is not None:
            key = ARGUMENTS[name]
            if flags[key] is not None:
                raise UserError(f"{flag_name(key)}: cannot be combined with NAME ({argument}): give one")
            flags[key] = argument
        if "skip_sink" in fields:  # the survey of heads leaves those keys out of its figures, too
            flags["skip_sink"] = skip_sink
        to = Destination(
            format,
            output,
            precision,
            color,
            several=False,
            scale_colors=scale_colors,
            skip_sink=skip_sink,
        )
        return run_experiment(name, config, show_config, flags, to)

    signature = inspect.signature(command)
    missing = set() if name in ARGUMENTS else {"argument"}
    own = [
        p
        for p in signature.parameters.values()
        if p.kind is not inspect.Parameter.VAR_KEYWORD and p.name not in fields.keys() | missing
    ]
    shared_last = sorted(fields, key=lambda key: key in Spec.model_fields)
    options = [option(key, fields[key]) for key in shared_last]
    # Typer reads a command from its signature; a function type has no such attribute for mypy.
    command.__signature__ = signature.replace(parameters=[*options, *own])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in (*options, *own)}
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, help=f"{summary}.\n\n\b\nExamples:{EXAMPLES[name]}\n")(command)
    return typer.main.get_command(app)
