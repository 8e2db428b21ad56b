"""What mkdocs asks for as it builds the site: pages from outside of docs/, the list of pages, links.

The site is made of the pages as they are: what docs/README.md lists is in its navigation, in that order.
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

What `import attncli` has, from its docstrings. [Python](python.md) shows it at work;
[compatibility](compatibility.md) says what stays."""
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
SECTION = re.compile(r"^(\S.*):$|^- \[(.+?)\]\((.+?)\)", re.MULTILINE)


def _places() -> dict[str, str]:
    """Where each page of the repository is on the site."""
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
    """The headings of docs/README.md, each with its pages."""
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
    """The navigation: the README, what docs/README.md lists, the library, the project."""
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
    """The pages of other folders, and one of what `import attncli` has."""
    index = files.get_file_from_path("README.md")
    assert index is not None, "it is the page that lists the others"
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
    """Where a file of the repository is on the site."""
    is_copied = source.startswith("docs/") and (ROOT / source).is_file()
    return PLACES.get(source) or (source.removeprefix("docs/") if is_copied else None)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to pages where these are on the site; what is in the repository alone is named, not linked."""
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
            assert (ROOT / source).exists(), f"{SOURCES[place]}: {target} is not there"
            return text
        return f"{mark}[{text}]({posixpath.relpath(there, here or '.')}{anchor})"

    parts = FENCED.split(markdown.replace("```console slow\n", "```console\n"))
    return "".join(part if part.startswith("```") else LINK.sub(linked, part) for part in parts)
