"""`attn config` and `attn report`: what config files and reports may hold."""

import json
from collections.abc import Callable
from typing import Any

from attncli.commands.command import DEBUG, Command, CommandGroup
from attncli.saved import report_schema
from attncli.settings.config_file import config_schema

CONFIG_SUMMARY = "Print the JSON Schema of config files, for editors"
CONFIG_EXAMPLES = (
    "attn config schema > attn.schema.json",
    "# in a config file: # yaml-language-server: $schema=attn.schema.json",
)
REPORT_SUMMARY = "Print the JSON Schema of reports, for programs that read them"
REPORT_EXAMPLES = ("attn report schema > report.schema.json",)


def _schema_command(schema: Callable[[], dict[str, Any]], summary: str, examples: tuple[str, ...]) -> Command:
    return Command("schema", summary, lambda: print(json.dumps(schema(), indent=2)), [DEBUG], examples)


def command(name: str, summary: str) -> CommandGroup:
    """`attn config` with its one command."""
    return CommandGroup(name, summary, [_schema_command(config_schema, CONFIG_SUMMARY, CONFIG_EXAMPLES)])


def report_command(name: str, summary: str) -> CommandGroup:
    """`attn report` with its one command."""
    return CommandGroup(name, summary, [_schema_command(report_schema, REPORT_SUMMARY, REPORT_EXAMPLES)])
