"""Hooks of mkdocs: pages from outside docs/, the navigation, links.

The navigation follows docs/README.md.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import attncli
from attncli.index import FEATURES

ROOT = Path(__file__).parent.parent
LESSONS = "attncli/data/lessons"
PROJECT = {
    "Changes": "CHANGELOG.md",
    "Contributing": "CONTRIBUTING.md",
    "Security": "SECURITY.md",
    "Code of conduct": "CODE_OF_CONDUCT.md",
}
API = "api.md"
ABOUT_API = """# The library

The names in `import attncli`, with their docstrings. [Python](python.md) has examples,
[compatibility](compatibility.md) what stays."""
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
SECTION = re.compile(r"^(\S.*):$|^- \[(.+?)\]\((.+?)\)", re.MULTILINE)


def _places() -> dict[str, str]:
    """Map each page of the repository to its path on the site."""
    docs = ROOT / "docs"
    of_docs = [path.relative_to(docs).as_posix() for path in docs.rglob("*.md")]
    lessons = [ROOT / LESSONS / "README.md", *ROOT.glob("attncli/features/*/lessons/*.md")]
    return {
        "README.md": "index.md",
        "docs/README.md": "pages.md",
        **{f"docs/{name}": name for name in of_docs if name != "README.md"},
        **{
            path.relative_to(ROOT).as_posix(): f"lessons/{path.name.replace('README', 'index')}"
            for path in lessons
        },
        **{name: name.lower() for name in PROJECT.values()},
    }


PLACES = _places()
SOURCES = {place: source for source, place in PLACES.items()}


def _sections() -> Iterator[tuple[str, list[Any]]]:
    """Yield the headings of docs/README.md with their pages."""
    pages: list[Any] = []
    for heading, title, target in SECTION.findall((ROOT / "docs" / "README.md").read_text()):
        if heading:
            pages = []
            yield heading, pages
        else:
            source = posixpath.normpath(f"docs/{target}")
            pages.append({title: PLACES[source]} if not source.startswith(LESSONS) else {title: _lessons()})


def _lessons() -> list[Any]:
    return sorted(place for place in PLACES.values() if place.startswith("lessons/"))


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation: the README, the pages of docs/README.md, the library, the project."""
    sections: list[Any] = [{heading: pages} for heading, pages in _sections()]
    project = [{title: PLACES[source]} for title, source in PROJECT.items()]
    config.nav = [
        {"attn": "index.md"},
        {"All pages": "pages.md"},
        *sections,
        {"Library": API},
        {"Project": project},
    ]
    config.site_name = f"attn {attncli.__version__}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of other folders, and the page of the library."""
    index = files.get_file_from_path("README.md")
    assert index is not None, "docs/README.md lists the pages"
    files.remove(index)
    for source, place in PLACES.items():
        if files.get_file_from_path(place) is None:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, API, content=_api_page()))
    return files


def _api_page() -> str:
    places = {name: place for card in FEATURES.values() for name, place in card.functions.items()}
    names = (places.get(name, f"attncli.{name}").replace(":", ".") for name in attncli.__all__)
    return "\n\n".join([ABOUT_API, *map("::: {}".format, names)])


def _place_of(source: str) -> str | None:
    """Return the path of a file of the repository on the site, None if it is not there."""
    is_copied = source.startswith("docs/") and (ROOT / source).is_file()
    return PLACES.get(source) or (source.removeprefix("docs/") if is_copied else None)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adapt links to the site; files that are only in the repository are named, not linked."""
    place = page.file.src_uri
    if place not in SOURCES:
        return markdown
    here, folder = posixpath.dirname(place), posixpath.dirname(SOURCES[place])

    def linked(match: re.Match[str]) -> str:
        mark, text, target, anchor = match[1], match[2], match[3], match[4] or ""
        if target.startswith("https://"):
            return match[0]
        source = posixpath.normpath(posixpath.join(folder, target))
        there = _place_of(source)
        if there is None:
            assert (ROOT / source).exists(), f"{SOURCES[place]}: {target} does not exist"
            return text
        return f"{mark}[{text}]({posixpath.relpath(there, here or '.')}{anchor})"

    parts = FENCED.split(markdown.replace("```console slow\n", "```console\n"))
    return "".join(part if part.startswith("```") else LINK.sub(linked, part) for part in parts)
