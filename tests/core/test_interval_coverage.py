"""Coverage of intervals, by simulation, against the table of benchmarks/intervals.md."""

import pytest

from tools.interval_coverage import REPEATS, Coverage, printed, table


def test_coverage_of_intervals_matches_the_page() -> None:
    """400 samples, 100 for some rows: four standard errors are 0.044 and 0.09 at 0.95."""
    rows, page = table(400), printed()
    assert [row[:2] for row in rows] == [row[:2] for row in page] and len(page) >= 15
    for row, of_page in zip(rows, page, strict=True):
        is_loop = row.interval.startswith(("mean AUROC", "difference"))
        assert row.shares == pytest.approx(of_page.shares, abs=0.11 if is_loop else 0.07), row


def test_intervals_of_enough_texts_have_their_coverage() -> None:
    """Intervals without a note that texts are few; AUROCs of any number of texts."""
    for row in printed():
        sizes = dict(row.shares)
        if row.interval.startswith(("mean over texts", "difference")):
            sizes = {size: share for size, share in sizes.items() if size in ("50", "200", "50+50")}
        elif row.interval.startswith("share of words"):  # of 10 words, 0.05 is half a word
            del sizes["10"]
        assert min(sizes.values()) >= 0.92, row


@pytest.mark.nightly
def test_the_table_of_the_page_matches_the_script() -> None:
    def rounded(rows: list[Coverage]) -> list[str]:
        return [row.line for row in rows]

    assert rounded(table(REPEATS)) == rounded(printed())
