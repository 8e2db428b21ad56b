"""Commands and their parameters as Typer's own objects, built from data instead of a signature."""

import gc
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import typer
from typer._coercion import TypeDescriptor
from typer.core import TyperArgument, TyperCommand, TyperOption
from typer.models import ArgumentInfo, OptionInfo

from attncli.errors import UserError

# How a command ends: its exit code.
DONE, FAILED, INTERRUPTED = 0, 1, 130
# The headings of long help in their order; one that is not here is an experiment's own and leads.
GROUPS = ("Input", "Projections", "Mask and position", "Variants", "Model", "Output", "Options")
HELP_NAMES = {"help_option_names": ["-h", "--help"]}
MAX_UNGROUPED = 22
NAME_WIDTH = 30

Parameter = TyperArgument | TyperOption


def option(
    names: str,
    help: str,
    metavar: str | None = None,
    *,
    kind: Any = str,
    default: Any = None,
    choices: Iterable[str] = (),
    min: int | None = None,
    group: str | None = None,
    expose_value: bool = True,
) -> TyperOption:
    """An option by its names, as `--output -o`; its value is None, or the default, where it is not given.

    `kind` is str, int, bool (a flag) or list[str] (a repeatable one); `choices` are what a shell completes.
    """
    words = list(choices)
    return TyperOption(
        param_decls=names.split(),
        type_descriptor=TypeDescriptor(kind, OptionInfo(min=min), None),
        help=help,
        metavar=metavar or "|".join(words) or None,
        is_flag=kind is bool,
        multiple=kind == list[str],
        default=default,
        show_default=True,
        autocompletion=(lambda context, arguments, begun: words) if words else None,
        min=min,
        rich_help_panel=group,
        expose_value=expose_value,
    )


def flag(name: str, help: str, *, group: str | None = None) -> TyperOption:
    """A switch that is off unless it is given."""
    return option(name, help, kind=bool, default=False, group=group)


def argument(name: str, help: str, metavar: str, *, required: bool = True, nargs: int = 1) -> TyperArgument:
    """An argument; with nargs -1 as many as there are."""
    return Argument(
        param_decls=[name],
        type_descriptor=TypeDescriptor(str if nargs == 1 else list[str], ArgumentInfo(), None),
        help=help,
        metavar=metavar,
        required=required,
        nargs=nargs,
    )


class Argument(TyperArgument):
    """An argument that help shows by its name alone: `FILE`, `[REPORT]`, `FILE...`."""

    def _usage_display_name(self) -> str:
        name = self.display_name_raw
        return (name if self.required else f"[{name}]") + ("" if self.nargs == 1 else "...")

    def display_type_rich(self, ctx: Any) -> str:
        """Nothing: the description says it."""
        return ""


class Command(TyperCommand):
    """A command whose help starts with examples and groups its options where there are many.

    Called without its required arguments it shows its help.
    """

    def __init__(
        self,
        name: str,
        summary: str,
        run: Callable[..., int | None],
        parameters: Sequence[Parameter],
        examples: Sequence[str],
    ) -> None:
        super().__init__(
            name,
            callback=run,
            params=list(parameters),
            help="\n".join((f"{summary}.\n\n\b\nExamples:", *(f"  {line}" for line in examples))),
            no_args_is_help=any(parameter.required for parameter in parameters),
            rich_markup_mode=None,
            context_settings=HELP_NAMES,
        )

    def invoke(self, ctx: Any) -> Any:
        """Run it; what was imported until now lives as long as the process, and is not collected."""
        gc.freeze()
        gc.enable()
        return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Typer's, with advice to quote a sentence that was split into several arguments."""
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            message = error.format_message()
            has_sentence = any(parameter.name == "sentence" for parameter in self.params)
            if has_sentence and message.startswith("Got unexpected extra argument"):
                is_bare = any(isinstance(one, Argument) and one.metavar == "TEXT" for one in self.params)
                flag = "" if is_bare else "--sentence "
                raise UserError(
                    f'{message}: a text goes in quotes: attn {self.name} {flag}"the cat sleeps"'
                ) from None
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The arguments; then the options, grouped where they would not fit on one screen."""
        is_long = len(self.params) > MAX_UNGROUPED
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            title = "Arguments"
            if isinstance(parameter, TyperOption):
                title = (parameter.rich_help_panel if is_long else None) or "Options"
            if record := parameter.get_help_record(ctx):
                sections.setdefault(title, []).append(record)
        names = [name for title in sections.keys() - {"Arguments"} for name, _ in sections[title]]
        width = min(max(map(len, names)), NAME_WIDTH)
        for title in sorted(sections, key=_place):
            (first, text), *others = sections[title]
            # Padded, so that descriptions begin in the same column in every group.
            padded = first if title == "Arguments" else first.ljust(width)
            with formatter.section(title):
                formatter.write_dl([(padded, text), *others], col_max=NAME_WIDTH)


def _place(title: str) -> tuple[bool, int]:
    return title != "Arguments", GROUPS.index(title) if title in GROUPS else -1
