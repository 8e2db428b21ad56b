"""Attention layers as people write them by hand, put together by a seeded generator; each knows its weights.

A tensor goes with the letters of its axes: b texts, h heads, n queries, m keys, d features.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 12


@dataclass(frozen=True)
class Spelled:
    """A tensor and the letters of its axes."""

    tensor: Tensor
    letters: str

    def to(self, letters: str) -> Tensor:
        """The tensor with these axes."""
        if letters == self.letters:
            return self.tensor
        return self.tensor.permute([self.letters.index(letter) for letter in letters])

    def beside(self, letters: str) -> Tensor:
        """The tensor with these axes, of size 1 where it has none."""
        kept = self.to("".join(letter for letter in letters if letter in self.letters))
        for place, letter in enumerate(letters):
            if letter not in self.letters:
                kept = kept.unsqueeze(place)
        return kept


@dataclass(frozen=True)
class Sizes:
    """How many texts, heads, key heads, queries, keys and features of a head there are."""

    b: int
    h: int
    g: int
    n: int
    m: int
    d: int


@dataclass(frozen=True)
class Ways:
    """How a layer is written."""

    project: str
    norm: str
    scale: str
    product: str
    bias: str
    mask: str
    mix_before: str
    matrix: str
    turn: str
    softmax: str
    precision: str
    mix_after: str
    after: str
    value: str
    groups: str
    chunks: str
    number: str


CHOICES: dict[str, Sequence[str]] = {
    "project": ("linear", "linear", "fused", "einsum", "conv"),
    "norm": ("none", "none", "none", "norm", "rotary"),
    "scale": ("none", "query", "key", "both", "times", "divided", "tensor", "per head"),
    "product": ("matmul", "matmul", "swapped", "bmm", "flat bmm", "baddbmm", "einsum", "einsum", "mulsum"),
    "bias": ("none", "none", "none", "of heads", "relative", "alibi"),
    "mask": ("none", "none", "fill", "fill in place", "added", "smallest", "where", "padding", "product"),
    "mix_before": ("none",) * 12 + ("einsum", "einsum", "linear", "conv", "matmul", "flat matmul", "mulsum"),
    "matrix": ("parameter", "computed", "computed", "buffer"),
    "turn": ("none", "none", "transpose", "permute", "einsum"),
    "softmax": ("functional", "torch", "method", "module", "minus max", "special"),
    "precision": ("none", "none", "none", "double", "dtype", "bfloat16"),
    "mix_after": ("none",) * 12
    + ("einsum", "einsum", "linear", "conv", "matmul", "flat matmul", "mulsum", "einsum of any numbers"),
    "after": ("none", "none", "dropout", "dropout in place", "fill", "cast", "copy", "turn"),
    "value": ("matmul", "matmul", "swapped", "bmm", "einsum", "einsum", "mulsum"),
    "groups": ("none", "none", "none", "repeated", "expanded", "five axes", "one"),
    "chunks": ("none", "none", "none", "none", "queries"),
    "number": ("num_heads", "num_heads", "heads", "none"),
}
SIZES = (
    *((2, 3, 3, 5, 7, 4),) * 4,
    (2, 3, 3, 5, 5, 4),
    *((1, 3, 3, 5, 7, 4), (1, 1, 1, 5, 5, 12), (2, 3, 3, 1, 7, 4), (3, 2, 2, 5, 1, 6)),
    *((3, 3, 3, 3, 3, 4), (4, 2, 2, 4, 4, 4), (5, 3, 3, 5, 3, 4), (2, 2, 2, 2, 7, 6)),
)
GROUPED = ((2, 6, 2, 5, 7, 2), (2, 4, 2, 3, 5, 3), (1, 6, 3, 5, 5, 2), (3, 4, 2, 4, 3, 3))


@dataclass
class HandmadeLayer(nn.Module):
    """Attention by hand, written as `ways` say; `weights` are those of its last call, (b, h, n, m) each."""

    ways: Ways
    sizes: Sizes
    chance: random.Random
    is_self: bool
    weights: list[Tensor] = field(default_factory=list)
    mixed: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    __hash__ = nn.Module.__hash__

    def __post_init__(self) -> None:
        attributes = {name.name: self.__dict__.pop(name.name) for name in fields(self)}
        super().__init__()
        self.__dict__.update(attributes)
        sizes, ways = self.sizes, self.ways
        if ways.number != "none":
            setattr(self, ways.number, sizes.h)
        features = sizes.h * sizes.d, sizes.g * sizes.d, sizes.g * sizes.d
        if ways.project == "fused" and self.is_self:
            self.to_all = nn.Linear(WIDTH, sum(features))
        elif ways.project == "conv":
            self.to_each = nn.ModuleList(nn.Conv1d(WIDTH, count, 1) for count in features)
        elif ways.project == "einsum":
            self.to_each = nn.ParameterList(
                torch.randn(count // sizes.d, sizes.d, WIDTH) / WIDTH**0.5 for count in features
            )
        else:
            self.to_each = nn.ModuleList(nn.Linear(WIDTH, count) for count in features)
        self.temperature = nn.Parameter(torch.rand(sizes.h) + 0.5)
        self.relative = nn.Parameter(torch.randn(sizes.h, sizes.n + sizes.m))
        self.of_heads = nn.Parameter(torch.randn(sizes.h, sizes.n, sizes.m))
        matrices = [torch.randn(sizes.h, sizes.h) for _ in range(2)]
        if ways.matrix == "parameter" and ways.mix_after != "einsum of any numbers":
            matrices[1] = matrices[1].softmax(-1)
        self.matrices = nn.ParameterList(matrices)
        self.register_buffer("buffer", torch.randn(sizes.h, sizes.h).softmax(-1))
        self.softmaxes = nn.ModuleDict({str(axis): nn.Softmax(dim=axis) for axis in range(-5, 0)})

    def order(self, letters: str) -> str:
        """The letters in any order."""
        return "".join(self.chance.sample(letters, len(letters)))

    # Query, key and value

    def split(self, x: Tensor, place: int, token: str) -> Spelled:
        """Query, key or value, (b, token, h, d) in some order."""
        sizes, ways = self.sizes, self.ways
        heads = sizes.h if place == 0 else sizes.g
        if ways.project == "fused" and self.is_self:
            start = [0, sizes.h, sizes.h + sizes.g][place] * sizes.d
            part = self.to_all(x)[..., start : start + heads * sizes.d]
            return Spelled(part.reshape(*x.shape[:2], heads, sizes.d), f"b{token}hd")
        if ways.project == "conv":
            part = self.to_each[place](x.mT)
            return Spelled(part.view(len(x), heads, sizes.d, -1), f"bhd{token}")
        if ways.project == "einsum":
            letters = self.order(f"b{token}hd")
            return Spelled(torch.einsum(f"b{token}c,hdc->{letters}", x, self.to_each[place]), letters)
        return Spelled(self.to_each[place](x).view(*x.shape[:2], heads, sizes.d), f"b{token}hd")

    def normed(self, part: Spelled, token: str) -> Spelled:
        letters = f"b{token}hd"
        if self.ways.norm == "norm":
            return Spelled(functional.layer_norm(part.to(letters), (self.sizes.d,)), letters)
        if self.ways.norm == "rotary" and self.sizes.d % 2 == 0:
            whole = part.to(letters)
            first, second = whole.chunk(2, dim=-1)
            angles = torch.arange(whole.shape[1]).view(-1, 1, 1) * torch.ones(self.sizes.d)
            turned = torch.cat([-second, first], dim=-1)
            return Spelled(whole * angles.cos() + turned * angles.sin(), letters)
        return part

    def as_many(self, part: Spelled, token: str) -> Spelled:
        """Keys or values of as many heads as the queries have."""
        sizes, ways = self.sizes, self.ways
        if sizes.g == sizes.h or ways.groups in ("five axes", "one"):
            return part
        repeats = sizes.h // sizes.g
        if ways.groups == "repeated":
            letters = f"bh{token}d"
            return Spelled(part.to(letters).repeat_interleave(repeats, dim=1), letters)
        whole = part.to(f"b{token}hd").unsqueeze(3).expand(-1, -1, -1, repeats, -1)
        return Spelled(whole.flatten(2, 3), f"b{token}hd")

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        query = self.normed(self.split(x, 0, "n"), "n")
        key = self.normed(self.split(memory, 1, "m"), "m")
        value = self.split(memory, 2, "m")
        key, value = self.as_many(key, "m"), self.as_many(value, "m")
        factor = self.sizes.d**-0.5
        if self.ways.scale in ("query", "both"):
            query = Spelled(
                query.tensor * (factor if self.ways.scale == "query" else factor**0.5), query.letters
            )
        if self.ways.scale in ("key", "both"):
            key = Spelled(key.tensor * (factor if self.ways.scale == "key" else factor**0.5), key.letters)
        self.weights, self.mixed, self.outputs = [], [], []
        if self.ways.chunks == "none":
            return self.attend(query, key, value, 0)
        whole = query.to("bhnd")
        parts = [
            self.attend(Spelled(part, "bhnd"), key, value, 2 * number)
            for number, part in enumerate(whole.split(2, dim=2))
        ]
        return torch.cat(parts, dim=1)

    # Scores

    def product(self, query: Spelled, key: Spelled) -> Spelled:
        way, groups = self.ways.product, self.ways.groups
        if groups == "one" or (groups == "five axes" and self.sizes.g < self.sizes.h):
            return self.grouped(query, key)
        lead = self.chance.choice(("bh", "bh", "hb"))
        left, right = query.to(f"{lead}nd"), key.to(f"{lead}md")
        if way == "matmul":
            return Spelled(left @ right.transpose(-2, -1), f"{lead}nm")
        if way == "swapped":
            return Spelled(right @ left.mT, f"{lead}mn")
        if way == "einsum":
            of_query, of_key, out = self.order("bhnd"), self.order("bhmd"), self.order("bhnm")
            return Spelled(
                torch.einsum(f"{of_query},{of_key}->{out}", query.to(of_query), key.to(of_key)), out
            )
        if way == "mulsum":
            return Spelled((left.unsqueeze(-2) * right.unsqueeze(-3)).sum(-1), f"{lead}nm")
        shape = left.shape[:2]
        left, right = left.flatten(0, 1), right.flatten(0, 1)
        if way == "baddbmm":
            whole = torch.baddbmm(torch.zeros(1), left, right.mT, beta=0)
        else:
            whole = torch.bmm(left, right.transpose(1, 2))
        if way == "flat bmm" and lead == "bh":
            return Spelled(whole, "fnm")
        return Spelled(whole.unflatten(0, shape), f"{lead}nm")

    def grouped(self, query: Spelled, key: Spelled) -> Spelled:
        """Scores of heads that share keys."""
        if self.ways.groups == "one":
            part = key.to("bhmd")[:, 0]
            if self.ways.product in ("einsum", "mulsum"):
                of_query, of_key, out = self.order("bhnd"), self.order("bmd"), self.order("bhnm")
                part = Spelled(part, "bmd").to(of_key)
                return Spelled(torch.einsum(f"{of_query},{of_key}->{out}", query.to(of_query), part), out)
            if self.ways.product in ("bmm", "flat bmm"):
                flat = query.to("bhnd").flatten(1, 2)
                return Spelled(torch.bmm(flat, part.mT).unflatten(1, (self.sizes.h, -1)), "bhnm")
            return Spelled(query.to("bhnd") @ part.unsqueeze(1).mT, "bhnm")
        whole = query.to("bhnd").unflatten(1, (self.sizes.g, -1))
        if self.ways.product in ("einsum", "mulsum"):
            of_query, of_key, out = self.order("bgrnd"), self.order("bgmd"), self.order("bnm")
            place = self.chance.randrange(4)
            out = f"{out[:place]}gr{out[place:]}"
            keys = Spelled(key.tensor, key.letters.replace("h", "g")).to(of_key)
            scores = torch.einsum(f"{of_query},{of_key}->{out}", Spelled(whole, "bgrnd").to(of_query), keys)
        else:
            scores, out = whole @ key.to("bhmd").unsqueeze(2).mT, "bgrnm"
        return Spelled(scores.flatten(out.index("g"), out.index("g") + 1), out.replace("gr", "h"))

    def unflattened(self, part: Spelled) -> Spelled:
        if "f" not in part.letters:
            return part
        place = part.letters.index("f")
        return Spelled(part.tensor.unflatten(place, (-1, self.sizes.h)), part.letters.replace("f", "bh"))

    def scaled(self, scores: Spelled) -> Spelled:
        way, whole, factor = self.ways.scale, scores.tensor, self.sizes.d**-0.5
        if way == "times":
            return Spelled(whole * factor, scores.letters)
        if way == "divided":
            return Spelled(whole / self.sizes.d**0.5, scores.letters)
        if way == "tensor":
            return Spelled(whole / torch.tensor(float(self.sizes.d)).sqrt(), scores.letters)
        if way == "per head":
            scores = self.unflattened(scores)
            return Spelled(
                scores.tensor * Spelled(self.temperature, "h").beside(scores.letters), scores.letters
            )
        return scores

    def biased(self, scores: Spelled, first: int) -> Spelled:
        way = self.ways.bias
        if way == "none":
            return scores
        scores = self.unflattened(scores)
        num_queries = scores.tensor.shape[scores.letters.index("n")]
        queries, keys = torch.arange(first, first + num_queries), torch.arange(self.sizes.m)
        if way == "of heads":
            bias = self.of_heads[:, first : first + num_queries]
        elif way == "relative":
            bias = self.relative[:, keys - queries[:, None] + self.sizes.n]
        else:
            bias = -(keys - queries[:, None]).abs() * self.temperature[:, None, None]
        return Spelled(scores.tensor + Spelled(bias, "hnm").beside(scores.letters), scores.letters)

    def masked(self, scores: Spelled, first: int) -> Spelled:
        way, letters, whole = self.ways.mask, scores.letters, scores.tensor
        if way == "none":
            return scores
        num_queries = whole.shape[letters.index("n")]
        queries = torch.arange(first, first + num_queries)
        seen = torch.arange(self.sizes.m) <= queries[:, None] + max(0, self.sizes.m - self.sizes.n)
        mask = Spelled(seen, "nm")
        if way == "padding":
            kept = torch.ones(self.sizes.b, self.sizes.m, dtype=torch.bool)
            kept[-1, self.sizes.m - 1 :] = self.sizes.m == 1
            scores = self.unflattened(scores)
            mask, letters, whole = Spelled(kept, "bm"), scores.letters, scores.tensor
        seen = mask.beside(letters)
        if way in ("fill", "padding"):
            whole = whole.masked_fill(~seen, -torch.inf)
        elif way == "fill in place":
            whole = whole.masked_fill_(~seen, -1e9)
        elif way == "added":
            whole = whole + torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
        elif way == "smallest":
            whole = whole.masked_fill(~seen, torch.finfo(whole.dtype).min)
        elif way == "where":
            whole = torch.where(seen, whole, torch.tensor(-torch.inf, dtype=whole.dtype))
        else:
            whole = whole * seen - 1e4 * (~seen)
        return Spelled(whole, letters)

    # Heads that are mixed

    def matrix(self, place: int, *, are_shares: bool) -> Tensor:
        """(to, from) heads."""
        if self.ways.matrix == "buffer":
            return self.buffer
        matrix = self.matrices[place]
        if self.ways.matrix == "parameter":
            return matrix
        return matrix.softmax(-1) if are_shares else matrix * 2.0

    def mixed_heads(self, part: Spelled, way: str, place: int, *, are_shares: bool) -> Spelled:
        if way == "none":
            return part
        part = self.unflattened(part)
        matrix = self.matrix(place, are_shares=are_shares)
        letters = part.letters
        if way.startswith("einsum"):
            out = self.order("bynm")
            mixer = self.chance.choice(("yh", "hy"))
            operands = [(letters, part.tensor), (mixer, matrix if mixer == "yh" else matrix.mT)]
            self.chance.shuffle(operands)
            equation = ",".join(labels for labels, _ in operands)
            mixed = torch.einsum(f"{equation}->{out}", *(tensor for _, tensor in operands))
            return Spelled(mixed, out.replace("y", "h"))
        if way == "linear":
            last = self.order("bnm") + "h"
            return Spelled(functional.linear(part.to(last), matrix), last)
        if way == "conv":
            last = self.chance.choice(("nm", "mn"))
            return Spelled(functional.conv2d(part.to(f"bh{last}"), matrix[:, :, None, None]), f"bh{last}")
        if way == "mulsum":
            whole = part.to("bhnm")
            return Spelled((matrix[:, :, None, None] * whole.unsqueeze(1)).sum(2), "bhnm")
        if way == "flat matmul":
            whole = part.to("bhnm")
            return Spelled((matrix @ whole.flatten(2)).view(whole.shape), "bhnm")
        before = self.order("bnm")
        if self.chance.random() < 0.5:
            whole = part.to(before[:2] + "h" + before[2:])
            matrix = matrix if self.chance.random() < 0.5 else matrix.expand(whole.shape[1], -1, -1)
            return Spelled(matrix @ whole, before[:2] + "h" + before[2:])
        return Spelled(part.to(before + "h") @ matrix.mT, before + "h")

    # Weights

    def turned(self, part: Spelled) -> Spelled:
        way, letters = self.ways.turn, part.letters
        if way == "transpose" and len(letters) > 2:
            first, second = self.chance.sample(range(len(letters)), 2)
            swapped = [*letters]
            swapped[first], swapped[second] = letters[second], letters[first]
            return Spelled(part.tensor.transpose(first, second), "".join(swapped))
        if way == "permute":
            order = self.order(letters)
            return Spelled(part.to(order).contiguous(), order)
        if way == "einsum":
            order = self.order(letters)
            return Spelled(torch.einsum(f"{letters}->{order}", part.tensor), order)
        return part

    def shares(self, scores: Spelled) -> Spelled:
        way, precision = self.ways.softmax, self.ways.precision
        axis, whole = scores.letters.index("m"), scores.tensor
        if precision == "double":
            whole = whole.double()
        elif precision == "bfloat16":
            whole = whole.bfloat16()
        named = {"dtype": torch.float32} if precision == "dtype" else {}
        if self.chance.random() < 0.5:
            axis -= whole.ndim
        if way == "minus max":
            whole = whole - whole.amax(dim=axis, keepdim=True)
            weights = whole.softmax(dim=axis)
        elif way == "functional":
            weights = functional.softmax(whole, dim=axis, **named)
        elif way == "torch":
            weights = torch.softmax(whole, axis, **named)
        elif way == "module":
            weights = self.softmaxes[str(axis if axis < 0 else axis - whole.ndim)](whole)
        elif way == "special":
            weights = torch.special.softmax(whole, axis)
        else:
            weights = whole.softmax(axis, **named)
        return Spelled(weights.to(scores.tensor.dtype), scores.letters)

    def changed(self, weights: Spelled) -> Spelled:
        way, whole = self.ways.after, weights.tensor
        if way == "dropout":
            whole = functional.dropout(whole, 0.2, self.training)
        elif way == "dropout in place":
            whole = functional.dropout(whole, 0.2, self.training, inplace=True)
        elif way == "fill":
            whole = whole.masked_fill(torch.zeros(1, dtype=torch.bool), 0.0)
        elif way == "cast":
            whole = whole.double().float()
        elif way == "copy":
            whole = whole.contiguous().clone()
        elif way == "turn":
            order = self.order(weights.letters)
            return Spelled(weights.to(order), order)
        return Spelled(whole, weights.letters)

    def kept(self, weights: Spelled) -> Tensor:
        whole = self.unflattened(weights)
        return whole.to("bhnm").detach().clone()

    def attend(self, query: Spelled, key: Spelled, value: Spelled, first: int) -> Tensor:
        scores = self.biased(self.scaled(self.product(query, key)), first)
        scores = self.mixed_heads(scores, self.ways.mix_before, 0, are_shares=False)
        weights = self.shares(self.turned(self.masked(scores, first)))
        self.weights.append(self.kept(weights))
        are_shares = self.ways.mix_after != "einsum of any numbers"
        mixed = self.mixed_heads(weights, self.ways.mix_after, 1, are_shares=are_shares)
        self.mixed.append(self.kept(mixed))
        output = self.read(self.changed(mixed), value)
        self.outputs.append(output.detach())
        return output.transpose(1, 2).flatten(2)

    def read(self, weights: Spelled, value: Spelled) -> Tensor:
        """What the weights take of the values, (b, h, n, d)."""
        way, groups = self.ways.value, self.ways.groups
        if groups == "one" or (groups == "five axes" and self.sizes.g < self.sizes.h):
            return self.read_groups(self.unflattened(weights), value)
        lead = self.chance.choice(("bh", "bh", "hb"))
        if way == "bmm" and weights.letters in ("fnm", "fmn"):
            whole = torch.bmm(weights.to("fnm"), value.to("bhmd").flatten(0, 1))
            return whole.unflatten(0, (-1, self.sizes.h))
        weights = self.unflattened(weights)
        left, right = weights.to(f"{lead}nm"), value.to(f"{lead}md")
        if way == "matmul":
            return Spelled(left @ right, f"{lead}nd").to("bhnd")
        if way == "swapped":
            return Spelled(right.mT @ left.mT, f"{lead}dn").to("bhnd")
        if way == "bmm":
            whole = torch.bmm(left.flatten(0, 1), right.flatten(0, 1)).unflatten(0, left.shape[:2])
            return Spelled(whole, f"{lead}nd").to("bhnd")
        if way == "mulsum":
            return Spelled((left.unsqueeze(-1) * right.unsqueeze(-3)).sum(-2), f"{lead}nd").to("bhnd")
        of_value, out = self.order("bhmd"), self.order("bhnd")
        whole = torch.einsum(f"{weights.letters},{of_value}->{out}", weights.tensor, value.to(of_value))
        return Spelled(whole, out).to("bhnd")

    def read_groups(self, weights: Spelled, value: Spelled) -> Tensor:
        if self.ways.groups == "one":
            part = value.to("bhmd")[:, 0]
            if self.ways.value in ("einsum", "mulsum"):
                of_value, out = self.order("bmd"), self.order("bhnd")
                part = Spelled(part, "bmd").to(of_value)
                whole = torch.einsum(f"{weights.letters},{of_value}->{out}", weights.tensor, part)
                return Spelled(whole, out).to("bhnd")
            return weights.to("bhnm") @ part.unsqueeze(1)
        whole = weights.to("bhnm").unflatten(1, (self.sizes.g, -1))
        if self.ways.value in ("einsum", "mulsum"):
            of_value = self.order("bgmd")
            part = Spelled(value.tensor, value.letters.replace("h", "g")).to(of_value)
            return torch.einsum(f"bgrnm,{of_value}->bgrnd", whole, part).flatten(1, 2)
        return (whole @ value.to("bhmd").unsqueeze(2)).flatten(1, 2)


def handmade_layer(seed: int) -> tuple[HandmadeLayer, Callable[[], Tensor]]:
    """The layer of a seed, and a call of it."""
    chance = random.Random(seed)
    ways = Ways(**{name: chance.choice(choices) for name, choices in CHOICES.items()})
    sizes = Sizes(*chance.choice(GROUPED if ways.groups not in ("none", "one") else SIZES))
    if ways.groups == "one":
        sizes = Sizes(sizes.b, sizes.h, 1, sizes.n, sizes.m, sizes.d)
    torch.manual_seed(seed)
    is_self = sizes.n == sizes.m and chance.random() < 0.7
    layer = HandmadeLayer(ways, sizes, chance, is_self).train(chance.random() < 0.7)
    x, memory = torch.randn(sizes.b, sizes.n, WIDTH), torch.randn(sizes.b, sizes.m, WIDTH)
    state = chance.getstate()

    def call() -> Tensor:
        chance.setstate(state)
        torch.manual_seed(seed)
        output: Tensor = layer(x) if is_self else layer(x, memory)
        return output

    return layer, call
