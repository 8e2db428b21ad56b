"""Writes docs/settings.md from the Specs: python tools/settings_page.py [--check]"""

import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from textwrap import TextWrapper
from typing import NamedTuple

from pydantic.fields import FieldInfo

from attncli.commands.command import OUTPUT_FLAGS, Parameter, default_text, metavar
from attncli.settings import SPECS, every_setting_of
from attncli.settings.fields import NoFlag, flag_name, with_key_names

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
INTRODUCTION = """# Settings

Every setting of an experiment, as a flag and as a key in a config file: `--batch-size 8` is `batch_size: 8`,
a flag without a value `true`. Flags override the file, the file overrides the defaults; `--show-config` shows
the result:

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

A command without a text reads standard input if that is a pipe, a socket or a redirected file. In a
`while read` loop, give the text as an argument or add `< /dev/null`. `-` as FILE reads any standard input.

`attn COMMAND --help-all` lists the flags of a command, and all that `--sort` takes. Names with a colon are
keys for config files only. Heads are `LAYER:HEAD`, from 0; several are separated by commas. Written by
`python tools/settings_page.py`.
"""
OMITTED = re.compile(
    r": (?:\w+, ){9,}\w+$|; - reads stdin$|, as LAYER:HEAD(?:,\.\.\.)?(?=$| \()| \(LAYER:HEAD,\.\.\.\)"
)
"""Omitted parts of a meaning: long lists of names, and what the introduction or the value says."""
VARIANTS = ("Variants", "Mask and position")
PLAIN = ("causal", "scale", "softmax")
"""Groups of settings that docs/variants.md explains, without these."""
WRAPPED = TextWrapper(119, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


class Setting(NamedTuple):
    """An item of a list."""

    name: str
    values: str
    meaning: str

    def line(self, *commands: str) -> str:
        """The item as Markdown, with the commands that have it if it is not for all."""
        some = f" ({', '.join(commands)})" if commands else ""
        name = f"{self.name} {self.values}".strip()
        return f"{WRAPPED.fill(f'- `{name}`{some}: {self.meaning}')}\n"


def setting_of(key: str, field: FieldInfo) -> Setting:
    """The setting, with its choices unless the meaning explains each of them."""
    is_switch = field.annotation is bool
    values = "" if is_switch else metavar(key, field)
    meaning = OMITTED.sub("", with_key_names(str(field.description), flags=True))
    choices = values.removesuffix(",...").split("|")
    if len(choices) > 1 and all(re.search(rf"\b{choice.lower()}\b", meaning) for choice in choices):
        values = ""
    default = "" if is_switch and not field.default else default_text(field)
    has_flag = not any(isinstance(data, NoFlag) for data in field.metadata)
    return Setting(flag_name(key) if has_flag else f"{key}:", values, f"{meaning}{default}")


def output_setting(flag: Parameter) -> Setting:
    """A flag of the output, in the style of the settings."""
    meaning = f"{flag.help[0].lower()}{flag.help[1:]}".removesuffix(".").replace(". [", " [")
    default = f" [default: {flag.default}]" if flag.default else ""
    return Setting(", ".join(reversed(flag.flags)), flag.metavar or "", f"{meaning}{default}")


def settings_page() -> str:
    """Lists of the settings of several commands, of the flags of the output, and of each experiment's own."""
    commands: dict[Setting, list[str]] = defaultdict(list)
    variants: dict[str, None] = {}
    for spec in (every_setting_of(name) for name in SPECS):
        for key, field in spec.model_fields.items():
            setting = setting_of(key, field)
            if spec.group_of(key) in VARIANTS and key not in PLAIN:
                variants[f"`{setting.name}`"] = None
            else:
                commands[setting].append(spec.experiment)
    shared = {setting: names for setting, names in commands.items() if len(names) > 1}
    ambiguous = Counter(setting.name for setting in shared)
    lines = (
        setting.line(*(shared[setting] if ambiguous[setting.name] > 1 else [])) for setting in sorted(shared)
    )
    linked = WRAPPED.fill(f"- [variants of attention](variants.md): {', '.join(variants)}")
    parts = [INTRODUCTION, "\n## Settings of several commands\n\n", *lines, f"{linked}\n"]
    parts += ["\n## Output\n\nOnly flags, not keys of a config file.\n\n"]
    parts += [output_setting(flag).line() for flag in OUTPUT_FLAGS]
    for name in SPECS:
        if lines_of_one := [setting.line() for setting, names in commands.items() if names == [name]]:
            parts += [f"\n## attn {name}\n\n", *lines_of_one]
    return "".join(parts)


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        is_fresh = PAGE.read_text() == settings_page()
        sys.exit(None if is_fresh else "docs/settings.md is stale: python tools/settings_page.py")
    PAGE.write_text(settings_page())
