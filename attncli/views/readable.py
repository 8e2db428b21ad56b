"""Reports with the tokens of a model's vocabulary as the text that they mean."""

from dataclasses import replace

from attncli.plain_text import readable_token
from attncli.report import Report, Row, Table, Terms


def readable(report: Report) -> Report:
    """The report with every token, in its steps as well, as `readable_token` has it."""
    spelling = report.token_spelling
    if spelling is None:
        return report
    written = report.table("written")
    statistics = {"written": Table(_readable_row(row, spelling) for row in written)} if written else {}
    return replace(
        report,
        statistics={**report.statistics, **statistics},
        tokens=tuple(readable_token(token, spelling) for token in report.tokens),
        context_tokens=tuple(readable_token(token, spelling) for token in report.context_tokens),
        steps=tuple(
            replace(step, tables=tuple(_readable_terms(table, spelling) for table in step.tables))
            for step in report.steps
        ),
        token_spelling=None,
    )


def _readable_row(row: Row, spelling: str) -> Row:
    return {**row, "token": readable_token(str(row["token"]), spelling)}


def _readable_terms(table: Terms, spelling: str) -> Terms:
    """Tokens are in the column `text`."""
    if "text" not in table.columns:
        return table
    place = table.columns.index("text")
    rows = tuple(
        (*row[:place], readable_token(str(row[place]), spelling), *row[place + 1 :]) for row in table.rows
    )
    return replace(table, rows=rows)
