"""Reports of synthetic pictures with synthetic weights on their patches and on [CLS]."""

from collections.abc import Sequence
from io import BytesIO

import numpy as np
from PIL import Image

from attncli.features.words.results import SpokenWord, SpokenWords
from attncli.records.attention import LayerStatistics
from attncli.records.kinds import read_result
from attncli.records.report import (
    Box,
    NamedTensor,
    Numbers,
    Picture,
    PictureMaps,
    PictureRow,
    Report,
    Table,
    Tensors,
)
from tests.views.page.pages import softmax


def drawn_picture(width: int, height: int, boxes: Sequence[Box | None], name: str = "disc.png") -> Picture:
    """A light disc on a dark background."""
    y, x = np.mgrid[0:height, 0:width]
    disc = (x - width / 2) ** 2 + (y - height / 3) ** 2 < (min(width, height) / 4) ** 2
    pixels = np.where(disc[..., np.newaxis], [240, 200, 120], [20, 40, 60]).astype(np.uint8)
    stream = BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    size = (2 * width, 2 * height + 10)
    return Picture(name, size, (0, 5, 2 * width, 2 * height + 5), stream.getvalue(), tuple(boxes))


def patches(rows: int, columns: int) -> list[Box]:
    return [
        (c / columns, r / rows, (c + 1) / columns, (r + 1) / rows)
        for r in range(rows)
        for c in range(columns)
    ]


def tokens_of_patches(rows: int, columns: int, first: Sequence[str] = ("[CLS]",)) -> tuple[str, ...]:
    return (*first, *(f"r{r}c{c}" for r in range(1, rows + 1) for c in range(1, columns + 1)))


def weights_of(num_tokens: int, *leading: int, seed: int = 0) -> np.ndarray:
    scores = np.random.default_rng(seed).normal(size=(*leading, num_tokens, num_tokens))
    return softmax(2 * scores)


def one_head(rows: int = 5, columns: int = 7, first: Sequence[str] = ("[CLS]",), **spec: object) -> Report:
    """The weights of one head."""
    tokens = tokens_of_patches(rows, columns, first)
    picture = drawn_picture(14 * columns, 14 * rows, [*[None] * len(first), *patches(rows, columns)])
    tensors = {"weights": NamedTensor(("query", "key"), weights_of(len(tokens)))}
    spec = {"model": "vit", "layer": 2, "head": 1, "seed": 0, "from": ["[CLS]"], **spec}
    return Report("self", spec, {}, tokens, tensors=tensors, pictures=(picture,), result=LayerStatistics())


def survey(
    rows: int = 5,
    columns: int = 7,
    layers: int = 3,
    heads: int = 4,
    *,
    is_whole: bool = False,
    **spec: object,
) -> Report:
    """The looks of every head from [CLS], their means and the rollout, with or without the whole weights."""
    tokens = tokens_of_patches(rows, columns)
    picture = drawn_picture(14 * columns, 14 * rows, [None, *patches(rows, columns)])
    weights = weights_of(len(tokens), layers, heads)
    looks = weights[:, :, 0]
    tensors = {
        **({"weights": NamedTensor(("layer", "head", "query", "key"), weights)} if is_whole else {}),
        "looks": NamedTensor(("layer", "head", "key"), looks),
        "mean_look": NamedTensor(("layer", "key"), looks.mean(axis=1)),
        "rollout": NamedTensor(("key",), looks.mean(axis=(0, 1))),
    }
    table = Table(
        {
            "layer": layer,
            "head": head,
            "stack": "self",
            "kind": "self",
            "pattern": "unnamed",
            "entropy": head / 10,
        }
        for layer in range(layers)
        for head in range(heads)
    )
    pattern = {"stack": "self", "pattern": "unnamed", "statistic": None, "heads": len(table)}
    patterns = Table([{**pattern, "threshold": None, "rows": len(tokens)}])
    spec = {"model": "vit", "seed": 0, "from": ["[CLS]"], **spec}
    statistics = {"heads": table, "patterns": patterns}
    return Report(
        "heads", spec, {}, tokens, (), tensors, read_result("heads", statistics), pictures=(picture,)
    )


def written_words(*words: str) -> Report:
    """A prompt of a word and a picture of 15 patches, and the looks of each word that the model wrote."""
    num_tokens = 16 + len(words)
    picture = drawn_picture(50, 30, [*patches(3, 5), *[None] * (1 + len(words[1:]))])
    weights = weights_of(num_tokens)[15 : num_tokens - 1, : num_tokens - 1]
    return Report(
        "generate",
        {"model": "llava", "sort": "entropy", "sentence": "what?"},
        {},
        (*(f"r{i}" for i in range(15)), "what?", *words[:-1]),
        tensors={"weights": NamedTensor(("query", "key"), weights)},
        result=read_result(
            "generate",
            {
                "writing": Numbers(prompt_tokens=16, new_tokens=len(words)),
                "written": Table({"token": word, "keys": [3], "weights": [0.5]} for word in words),
                "heads": Table([{"layer": 0, "head": 0, "entropy": 0.5}]),
                "rows": Tensors(
                    entropy=NamedTensor(("layer", "head", "query"), np.full((1, 1, len(words)), 0.5))
                ),
            },
        ),
        first_query=15,
        pictures=(picture,),
        written="".join(words),
    )


def several_pictures(
    *sizes: tuple[int, int],
    maps: tuple[str, ...] = ("2:0", "2:1", "mean"),
    queries: tuple[str, ...] = ("[CLS]",),
    num_pictures: int | None = None,
    names: tuple[str, ...] = (),
) -> Report:
    """A survey of pictures with these numbers of rows and columns of patches, each with the same maps."""
    rows = []
    for number, (down, across) in enumerate(sizes):
        tokens = tokens_of_patches(down, across)
        name = names[number] if names else f"{number}.png"
        picture = drawn_picture(14 * across, 14 * down, [None, *patches(down, across)], name)
        weights = weights_of(len(tokens), seed=number)[: len(maps)]
        rows.append(PictureRow(picture, tokens, queries, NamedTensor(("map", "key"), weights)))
    one = survey()
    found = PictureMaps(maps, "the heads of layer 2 and their mean", num_pictures or len(rows), tuple(rows))
    spec = {**one.spec, "image": "photos", "from": []}
    texts = Numbers(num_texts=found.num_pictures, num_tokens=36)
    statistics = {**one.statistics, "texts": texts}
    return Report("heads", spec, {}, result=read_result("heads", statistics), picture_maps=found)


def spoken(words: Sequence[str], *pictures: Picture) -> Report:
    """A report of these spoken words, each half a second long; a space may precede a word."""
    rows = SpokenWord.rows(
        {
            "word": word.strip(),
            "begin": 0.5 * place,
            "end": 0.5 * place + 0.5,
            "probability": 1.0,
            "after_blank": word.startswith(" "),
        }
        for place, word in enumerate(words)
    )
    result = SpokenWords(words=rows, seconds=0.5 * len(words), step=0.02)
    return Report("heads", {}, {}, result=result, pictures=pictures)
