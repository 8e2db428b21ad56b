"""Writes docs/settings.md from the Specs: python tools/settings_page.py [--check]"""

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pydantic.fields import FieldInfo

from attncli.commands.command import default_text, metavar
from attncli.settings import SPECS, every_setting_of
from attncli.settings.fields import NoFlag, flag_name, with_key_names

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
INTRODUCTION = """# Settings

Every flag of an experiment and its key in a config file: `--batch-size 8` is `batch_size: 8`, a flag without
a value `true`. Flags override the file, the file overrides the defaults; `--show-config` shows the result:

```console
$ attn norm --eps 1e-6 --show-config
experiment: norm
seed: 0  # default
device: auto  # default
explain: false  # default
kind: all  # default
batch_size: 32  # default
num_features: 100  # default
eps: 1e-06  # --eps
momentum: 0.1  # default
variance: unbiased  # default
```

A command without a text reads standard input if that is a pipe, a socket or a redirected file, to its end. In
a `while read` loop, give the text as an argument or add `< /dev/null`. `--file -` reads any standard input.

The first table has settings that several commands share; `attn COMMAND --help-all` lists those of a command.
A name with a colon is for config files only. Written by `python tools/settings_page.py`.
"""
TABLE = "| setting | meaning |\n| --- | --- |\n"


class Setting(NamedTuple):
    """A row of a table."""

    name: str
    values: str
    meaning: str

    @property
    def line(self) -> str:
        """The row as Markdown."""
        return f"| `{self.name}`{self.values} | {self.meaning} |\n"


def setting_of(key: str, field: FieldInfo) -> Setting:
    is_switch = field.annotation is bool
    values = "" if is_switch else f" `{metavar(key, field)}`".replace("|", "`, `")
    default = "" if is_switch and not field.default else default_text(field)
    has_flag = not any(isinstance(data, NoFlag) for data in field.metadata)
    meaning = f"{with_key_names(str(field.description), flags=True)}{default}".replace("|", "\\|")
    return Setting(flag_name(key) if has_flag else f"{key}:", values, meaning)


def table(settings: Iterable[Setting]) -> str:
    return TABLE + "".join(setting.line for setting in settings)


def settings_page() -> str:
    """A table of shared settings, and one per experiment of those that differ."""
    by_experiment = {
        name: [setting_of(key, field) for key, field in every_setting_of(name).model_fields.items()]
        for name in SPECS
    }
    shared = shared_settings(by_experiment.values())
    parts = [INTRODUCTION, f"\n## Settings of several commands\n\n{table(sorted(shared))}"]
    for name, settings in by_experiment.items():
        if particular := [setting for setting in settings if setting not in shared]:
            parts.append(f"\n## attn {name}\n\n{table(particular)}")
    return "".join(parts)


def shared_settings(experiments: Iterable[list[Setting]]) -> set[Setting]:
    """The most common setting of each name, if several commands have it."""
    counts = Counter(setting for settings in experiments for setting in settings)
    by_name: dict[str, Setting] = {}
    for setting, count in counts.most_common():
        if count > 1:
            by_name.setdefault(setting.name, setting)
    return {*by_name.values()}


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        is_fresh = PAGE.read_text() == settings_page()
        sys.exit(None if is_fresh else "docs/settings.md is stale: python tools/settings_page.py")
    PAGE.write_text(settings_page())
