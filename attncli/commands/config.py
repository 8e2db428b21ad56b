"""`attn config`: what config files may hold."""

import json

from attncli.commands.command import DEBUG, Command, CommandGroup
from attncli.settings.schema import config_schema

SCHEMA_SUMMARY = "Print the JSON Schema of config files, for editors"
SCHEMA_EXAMPLES = (
    "attn config schema > attn.schema.json",
    "# in a config file: # yaml-language-server: $schema=attn.schema.json",
)


def _schema() -> None:
    print(json.dumps(config_schema(), indent=2))


def command(name: str, summary: str) -> CommandGroup:
    """`attn config` with its one command."""
    return CommandGroup(name, summary, [Command("schema", SCHEMA_SUMMARY, _schema, [DEBUG], SCHEMA_EXAMPLES)])
