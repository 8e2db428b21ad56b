"""Writes docs/settings.md from the Specs: python tools/settings_page.py"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pydantic.fields import FieldInfo

from attncli.commands.command import default_text, metavar
from attncli.settings import SPECS, every_setting_of
from attncli.settings.fields import NoFlag, flag_name, in_words_of

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
INTRODUCTION = """# Settings

Every flag of an experiment, and the key of a config file that it is: `--batch-size 8` is `batch_size: 8`.
Flags override the file, and the file overrides the defaults; `--show-config` prints what holds and where it
came from:

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

A command that takes a text and is given none reads standard input: `echo "the cat sleeps" | attn self`. A
pipe, a socket or a redirected file (`attn self < text.txt`) is read to its end, however late its text comes;
an empty one is no text. A terminal, /dev/null and a closed stream are not read, nor is anything if the text,
a picture or a sound is given. So a command in a `while read` loop, or in a script that itself comes through a
pipe, needs its text as an argument, or `< /dev/null`. `--file -` reads standard input of any kind.

The first table has what several commands share, then each command has its own. A name with a colon is for
config files only. Made by `python tools/settings_page.py`.
"""
TABLE = "| flag | values | meaning |\n| --- | --- | --- |\n"


class Setting(NamedTuple):
    """A row of a table."""

    name: str
    values: str
    meaning: str


def setting_of(key: str, field: FieldInfo) -> Setting:
    values = (
        "`true`, `false`" if field.annotation is bool else f"`{metavar(key, field)}`".replace("|", "`, `")
    )
    has_flag = not any(isinstance(data, NoFlag) for data in field.metadata)
    meaning = f"{in_words_of(str(field.description), flags=True)}{default_text(field)}".replace("|", "\\|")
    return Setting(flag_name(key) if has_flag else f"{key}:", values, meaning)


def table(settings: Iterable[Setting]) -> str:
    return TABLE + "".join(f"| `{name}` | {values} | {meaning} |\n" for name, values, meaning in settings)


def settings_page() -> str:
    """A table of what several experiments share, and one of each experiment's own settings."""
    by_experiment = {
        name: [setting_of(key, field) for key, field in every_setting_of(name).model_fields.items()]
        for name in SPECS
    }
    shared = shared_settings(by_experiment.values())
    parts = [INTRODUCTION, f"\n## Settings of several commands\n\n{table(sorted(shared))}"]
    for name, settings in by_experiment.items():
        parts.append(f"\n## attn {name}\n")
        if particular := [setting for setting in settings if setting not in shared]:
            parts.append(f"\n{table(particular)}")
        names = ", ".join(f"`{setting.name}`" for setting in settings if setting in shared)
        parts.append(f"\nShared: {names}\n")
    return "".join(parts)


def shared_settings(of_experiments: Iterable[list[Setting]]) -> set[Setting]:
    """Of each name what most commands mean by it, where more than one does."""
    counts = Counter(setting for settings in of_experiments for setting in settings)
    by_name: dict[str, Setting] = {}
    for setting, count in counts.most_common():
        if count > 1:
            by_name.setdefault(setting.name, setting)
    return {*by_name.values()}


if __name__ == "__main__":
    PAGE.write_text(settings_page())
