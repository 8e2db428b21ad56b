"""`attn config`: what config files may hold."""

import json
from typing import Any

import typer

from attncli.spec.schema import config_schema

SCHEMA_HELP = """Print the JSON Schema of config files, for editors.

\b
Examples:
  attn config schema > attn.schema.json
  # in a config file: # yaml-language-server: $schema=attn.schema.json
"""


def _schema() -> None:
    typer.echo(json.dumps(config_schema(), indent=2))


def build(name: str, summary: str) -> Any:
    """The Typer group."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True, help=f"{summary}.")
    app.callback()(lambda: None)
    app.command("schema", help=SCHEMA_HELP)(_schema)
    command = typer.main.get_command(app)
    command.name = name
    return command
