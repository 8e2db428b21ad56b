"""JSON -> Report, the inverse of its JSON form; what is damaged is one line that names the place."""

from dataclasses import dataclass

from attncli.errors import UserError
from attncli.report import SCHEMA_VERSION, Report
from attncli.saved.content import read_text
from attncli.saved.documents import documents
from attncli.saved.parts import Part, is_plain_name
from attncli.saved.statistics import read_statistics
from attncli.saved.steps import read_steps
from attncli.saved.tensors import check_tokens, read_tensor

# Bytes of memory for a byte of JSON at the peak, measured on matrices of weights and rounded up.
BYTES_PER_BYTE = 5
FIELDS = tuple(Report("", {}, {}).fields())


@dataclass(frozen=True)
class SavedReports:
    """The reports of a file, and whether it is a file of several (a list, or lines)."""

    reports: tuple[Report, ...]
    several: bool


def read_reports(file: str, *, most_bytes: int | None = None) -> SavedReports:
    """The reports of a JSON or JSON Lines file (`-`: standard input); UserError for what is none."""
    text, name = read_text(file, most_bytes=most_bytes, bytes_each=BYTES_PER_BYTE)
    return reports_of(text, name)


def reports_of(text: str, name: str) -> SavedReports:
    """The reports of a text: an object, a list of objects, or objects one after the other."""
    found: list[Report] = []
    several = False
    for number, data in enumerate(documents(text, name)):
        if isinstance(data, list):
            if number:
                raise UserError(
                    f"{name}: holds a list after another document: give one list, or a report a line"
                )
            several = True
            found += [to_report(Part(item, f"{name}: report {i}")) for i, item in enumerate(data)]
        else:
            found.append(to_report(Part(data, f"{name}: report {number}" if number else name)))
    return SavedReports(tuple(found), several or len(found) > 1)


def to_report(part: Part) -> Report:
    """The report that a JSON object holds."""
    if not isinstance(part.value, dict):
        raise part.wrong(f"is no saved report: it must be an object {part.got()}")
    if "schema_version" not in part.value:
        raise part.wrong("is no saved report: schema_version is missing")
    version = part.value["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        raise part.wrong(f"schema_version: this attn reads version {SCHEMA_VERSION} (got {version!r:.20})")
    names = (*FIELDS, "steps") if "steps" in part.value else FIELDS
    fields = part.fields(names)
    experiment = fields["experiment"].text()
    if not is_plain_name(experiment):
        raise fields["experiment"].wrong("must be a plain name")
    tensors = {name: read_tensor(item) for name, item in fields["tensors"].mapping().items()}
    report = Report(
        experiment,
        {name: item.plain() for name, item in fields["spec"].mapping().items()},
        {name: item.text() for name, item in fields["environment"].mapping().items()},
        fields["tokens"].texts(),
        fields["context_tokens"].texts(),
        tensors=tensors,
        statistics=read_statistics(fields["statistics"], fields["statistic_axes"], tensors),
        notes=fields["notes"].texts(),
        steps=read_steps(fields["steps"]) if "steps" in fields else (),
    )
    check_tokens(part, report)
    return report
