"""Numbers as places on a colour map: viridis for amounts, a diverging one where signs differ."""

from typing import NamedTuple

import numpy as np

# Each map has 256 colours, as hexadecimal red, green, blue.
# viridis (van der Walt and Smith, 2015; CC0): even steps look even, in grey and to the colour-blind, too.
VIRIDIS = (
    "44015444025645045745055946075a46085c460a5d460b5e470d60470e61471063471164471365481467481668481769"
    "48186a481a6c481b6d481c6e481d6f481f70482071482173482374482475482576482677482878482979472a7a472c7a"
    "472d7b472e7c472f7d46307e46327e46337f463480453581453781453882443983443a83443b84433d84433e85423f85"
    "4240864241864142874144874045884046883f47883f48893e49893e4a893e4c8a3d4d8a3d4e8a3c4f8a3c508b3b518b"
    "3b528b3a538b3a548c39558c39568c38588c38598c375a8c375b8d365c8d365d8d355e8d355f8d34608d34618d33628d"
    "33638d32648e32658e31668e31678e31688e30698e306a8e2f6b8e2f6c8e2e6d8e2e6e8e2e6f8e2d708e2d718e2c718e"
    "2c728e2c738e2b748e2b758e2a768e2a778e2a788e29798e297a8e297b8e287c8e287d8e277e8e277f8e27808e26818e"
    "26828e26828e25838e25848e25858e24868e24878e23888e23898e238a8d228b8d228c8d228d8d218e8d218f8d21908d"
    "21918c20928c20928c20938c1f948c1f958b1f968b1f978b1f988b1f998a1f9a8a1e9b8a1e9c891e9d891f9e891f9f88"
    "1fa0881fa1881fa1871fa28720a38620a48621a58521a68522a78522a88423a98324aa8325ab8225ac8226ad8127ad81"
    "28ae8029af7f2ab07f2cb17e2db27d2eb37c2fb47c31b57b32b67a34b67935b77937b87838b9773aba763bbb753dbc74"
    "3fbc7340bd7242be7144bf7046c06f48c16e4ac16d4cc26c4ec36b50c46a52c56954c56856c66758c7655ac8645cc863"
    "5ec96260ca6063cb5f65cb5e67cc5c69cd5b6ccd5a6ece5870cf5773d05675d05477d1537ad1517cd2507fd34e81d34d"
    "84d44b86d54989d5488bd6468ed64590d74393d74195d84098d83e9bd93c9dd93ba0da39a2da37a5db36a8db34aadc32"
    "addc30b0dd2fb2dd2db5de2bb8de29bade28bddf26c0df25c2df23c5e021c8e020cae11fcde11dd0e11cd2e21bd5e21a"
    "d8e219dae319dde318dfe318e2e418e5e419e7e419eae51aece51befe51cf1e51df4e61ef6e620f8e621fbe723fde725"
)
# coolwarm (Moreland, "Diverging color maps for scientific visualization", 2009): blue below zero, red above.
COOLWARM = (
    "3b4cc03c4ec23d50c33e51c53f53c64055c84257c94358cb445acc455cce465ecf485fd14961d24a63d34b64d54c66d6"
    "4e68d84f69d9506bda516ddb536edd5470de5572df5673e05875e15977e35a78e45b7ae55d7ce65e7de75f7fe86180e9"
    "6282ea6384eb6485ec6687ed6788ee688aef6a8bef6b8df06c8ff16e90f26f92f37093f37295f47396f57597f67699f6"
    "779af7799cf87a9df87b9ff97da0f97ea1fa80a3fa81a4fb82a6fb84a7fc85a8fc86a9fc88abfd89acfd8badfd8caffe"
    "8db0fe8fb1fe90b2fe92b4fe93b5fe94b6ff96b7ff97b8ff98b9ff9abbff9bbcff9dbdff9ebeff9fbfffa1c0ffa2c1ff"
    "a3c2fea5c3fea6c4fea7c5fea9c6fdaac7fdabc8fdadc9fdaec9fcafcafcb1cbfcb2ccfbb3cdfbb5cdfab6cefab7cff9"
    "b9d0f9bad0f8bbd1f8bcd2f7bed2f6bfd3f6c0d4f5c1d4f4c3d5f4c4d5f3c5d6f2c6d6f1c7d7f0c9d7f0cad8efcbd8ee"
    "ccd9edcdd9eccedaebcfdaead1dae9d2dbe8d3dbe7d4dbe6d5dbe5d6dce4d7dce3d8dce2d9dce1dadce0dbdcdedcdddd"
    "dddcdcdedcdbdfdbd9e0dbd8e1dad6e2dad5e3d9d3e4d9d2e5d8d1e6d7cfe7d7cee8d6cce9d5cbead5c9ead4c8ebd3c6"
    "ecd3c5edd2c3edd1c2eed0c0efcfbfefcebdf0cdbbf1cdbaf1ccb8f2cbb7f2cab5f2c9b4f3c8b2f3c7b1f4c6aff4c5ad"
    "f5c4acf5c2aaf5c1a9f5c0a7f6bfa6f6bea4f6bda2f7bca1f7ba9ff7b99ef7b89cf7b79bf7b599f7b497f7b396f7b194"
    "f7b093f7af91f7ad90f7ac8ef7aa8cf7a98bf7a889f7a688f6a586f6a385f6a283f5a081f59f80f59d7ef59c7df49a7b"
    "f4987af39778f39577f39475f29274f29072f18f71f18d6ff08b6ef08a6cef886bee8669ee8468ed8366ec8165ec7f63"
    "eb7d62ea7b60e97a5fe9785de8765ce7745be67259e57058e46e56e36c55e36b54e26952e16751e0654fdf634ede614d"
    "dd5f4bdc5d4ada5a49d95847d85646d75445d65244d55042d44e41d24b40d1493fd0473dcf453ccd423bcc403acb3e38"
    "ca3b37c83836c73635c53334c43032c32e31c12b30c0282fbe242ebd1f2dbb1b2cba162bb8122ab70d28b50927b40426"
)


def colour_map(is_diverging: bool) -> np.ndarray:
    """The colours of amounts, or of numbers of both signs."""
    return colours(COOLWARM if is_diverging else VIRIDIS)


def colours(hexadecimal: str) -> np.ndarray:
    """The 256 colours of a map, of shape (256, 3), each red, green, blue from 0 to 255."""
    return np.frombuffer(bytes.fromhex(hexadecimal), dtype=np.uint8).reshape(256, 3)


class Shading(NamedTuple):
    """Where each number stands on its map, from 0 to 1 (NaN: no number), and the numbers at the map's ends.

    `is_diverging`: zero stands in the middle. `scale` is the one that was used: a logarithm needs amounts.
    With `row` the ends are those of the whole; each row has its own.
    """

    places: np.ndarray
    low: float
    high: float
    is_diverging: bool
    scale: str


def shading(values: np.ndarray, scale: str = "linear", *, skip_keys: int = 0) -> Shading:
    """Places on the map: linear between the ends, even in the logarithm, or linear in each row by itself.

    `values` is a matrix, or a stack of them that share their ends. The first `skip_keys` columns count for no
    end and have no place, so that a sink does not take all the colours. Zero has the place 0 with `log`.
    """
    numbers = np.where(np.isfinite(values), values, np.nan).astype(np.float64)
    numbers[..., :skip_keys] = np.nan
    seen = ~np.isnan(numbers)
    if not seen.any():
        return Shading(numbers, np.nan, np.nan, False, "linear")
    least, most = float(np.nanmin(numbers)), float(np.nanmax(numbers))
    if least < 0 < most:
        return _diverging(numbers, seen, max(-least, most), "row" if scale == "row" else "linear")
    if scale == "log" and least >= 0 and most > 0:
        return _logarithmic(numbers, most)
    if scale == "row":
        low = np.min(numbers, axis=-1, keepdims=True, initial=np.inf, where=seen)
        high = np.max(numbers, axis=-1, keepdims=True, initial=-np.inf, where=seen)
        return Shading(_between(numbers, low, high), least, most, False, "row")
    return Shading(_between(numbers, np.array(least), np.array(most)), least, most, False, "linear")


def _between(numbers: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """0 at the low end, 1 at the high one; where the two are one, amounts stand high."""
    span = high - low
    flat = ~(span > 0)
    places = (numbers - np.where(flat, 0, low)) / np.where(flat, 1, span)
    return np.where(flat & ~np.isnan(numbers), np.where(high > 0, 1.0, 0.0), places)


def _diverging(numbers: np.ndarray, seen: np.ndarray, size: float, scale: str) -> Shading:
    sizes: np.ndarray | float = size
    if scale == "row":
        sizes = np.max(np.abs(numbers), axis=-1, keepdims=True, initial=0, where=seen)
        sizes = np.where(sizes > 0, sizes, 1)
    return Shading(0.5 + 0.5 * numbers / sizes, -size, size, True, scale)


def _logarithmic(numbers: np.ndarray, most: float) -> Shading:
    positive = numbers > 0
    least = float(np.min(numbers, initial=np.inf, where=positive))
    logarithms = np.log(numbers, where=positive, out=np.zeros_like(numbers))
    low, high = np.log(least), np.log(most)
    places = _between(logarithms, np.array(low), np.array(high)) if high > low else np.ones_like(numbers)
    return Shading(
        np.where(np.isnan(numbers), np.nan, np.where(positive, places, 0)), least, most, False, "log"
    )
