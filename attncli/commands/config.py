"""`attn config`: what config files may hold."""

import json

import typer
from typer.core import TyperGroup

from attncli.commands.command import Command
from attncli.settings.schema import config_schema

SCHEMA_SUMMARY = "Print the JSON Schema of config files, for editors"
SCHEMA_EXAMPLES = (
    "attn config schema > attn.schema.json",
    "# in a config file: # yaml-language-server: $schema=attn.schema.json",
)


def _schema() -> None:
    typer.echo(json.dumps(config_schema(), indent=2))


def command(name: str, summary: str) -> TyperGroup:
    """`attn config` with its one command."""
    schema = Command("schema", SCHEMA_SUMMARY, _schema, [], SCHEMA_EXAMPLES)
    return TyperGroup(
        name=name,
        help=f"{summary}.",
        commands={"schema": schema},
        no_args_is_help=True,
        rich_markup_mode=None,
    )
