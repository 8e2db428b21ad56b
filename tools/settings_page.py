"""Writes docs/settings.md from the Specs: python tools/settings_page.py"""

from pathlib import Path

from attncli.commands.command import default_text, metavar
from attncli.settings import SPECS
from attncli.settings.fields import NoFlag, flag_name, in_words_of

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
INTRODUCTION = """# Settings

Every flag is a key of a config file: `--head-dim 16` is `head_dim: 16`. Flags override the file, and the file
overrides the defaults; `--show-config` prints what holds and where it came from. Names with a colon are of
config files alone.

Made by `python tools/settings_page.py`.
"""


def settings_page() -> str:
    """A table of flags for each experiment."""
    parts = [INTRODUCTION]
    for name, spec in SPECS.items():
        parts.append(f"\n## attn {name}\n\n| flag | values | meaning |\n| --- | --- | --- |\n")
        for key, field in spec.model_fields.items():
            values = "`true`, `false`" if field.annotation is bool else f"`{metavar(key, field)}`"
            values = values.replace("|", "`, `")
            meaning = f"{in_words_of(str(field.description), flags=True)}{default_text(field)}"
            has_flag = not any(isinstance(data, NoFlag) for data in field.metadata)
            name = flag_name(key) if has_flag else f"{key}:"
            parts.append(f"| `{name}` | {values} | {meaning} |\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(settings_page())
