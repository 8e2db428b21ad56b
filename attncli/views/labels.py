"""Names for the places along an axis: positions and tokens, shortened where there is little room."""

from rich.cells import cell_len, set_cell_size

from attncli.plain_text import plain_text


def shortened(text: str, most: int | None) -> str:
    """The text in at most that many cells, an ellipsis at the end of what was cut."""
    if most is None or cell_len(text) <= most:
        return text
    return set_cell_size(text, most - 1).rstrip() + "…"


def token_texts(tokens: tuple[str, ...], count: int, most: int | None = None) -> list[str]:
    """The tokens as plain text of at most that many cells; empty where there are none."""
    return [shortened(plain_text(token), most) for token in tokens] if tokens else [""] * count
