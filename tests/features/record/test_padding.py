"""What is recorded of padded batches: the same as of each text by itself, in float64 by a naive loop."""

import math
import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import attncli
from tests.conftest import in_turn
from tests.naive_heads import naive_figures

SMALLEST = torch.finfo(torch.float32).min
NUMBERS = (-torch.inf, -1e9, -1e4, -1e3, SMALLEST)
"""What masks add, or put in the place of scores."""
HEADS, DIM = 4, 8
FIGURES = (
    *("entropy", "normalized_entropy", "max_weight", "participation", "sink_mass", "sink_mass_4"),
    *("previous_token", "next_token", "current_token", "one_key_mass", "distance"),
)


class Attention(nn.Module):
    """Attention of some heads over x: `attend` is handed query, key, value and who sees whom."""

    def __init__(self, attend: Callable[..., Tensor], *, kv_heads: int = HEADS) -> None:
        super().__init__()
        self.attend, self.kv_heads = attend, kv_heads
        self.query = nn.Linear(DIM, HEADS * DIM)
        self.key, self.value = (nn.Linear(DIM, kv_heads * DIM) for _ in range(2))

    def parts(self, x: Tensor, context: Tensor) -> list[Tensor]:
        made = self.query(x), self.key(context), self.value(context)
        return [part.unflatten(-1, (-1, DIM)).transpose(1, 2) for part in made]

    def forward(self, x: Tensor, seen: Tensor, context: Tensor | None = None) -> Tensor:
        return self.attend(*self.parts(x, x if context is None else context), seen)


def repeated(part: Tensor) -> Tensor:
    return part.repeat_interleave(HEADS // part.shape[1], dim=1)


def fused(made: Callable[[Tensor], Tensor | None]) -> Callable[..., Tensor]:
    """scaled_dot_product_attention with a mask made of who sees whom."""

    def attend(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
        mask = made(seen)
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, enable_gqa=key.shape[1] < HEADS
        )

    return attend


def by_hand(mask: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """A softmax of scores that `mask` has changed."""

    def attend(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
        scores = query @ repeated(key).mT / DIM**0.5
        return mask(scores, seen).softmax(dim=-1) @ repeated(value)

    return attend


def forms(number: float) -> dict[str, Callable[..., Tensor]]:
    """Ways in which programs hide a key."""
    hidden = torch.tensor(number)

    def added(seen: Tensor) -> Tensor:
        return torch.zeros(seen.shape).masked_fill(~seen, number)

    return {
        "fused, bool": fused(lambda seen: seen),
        "fused, added": fused(added),
        "masked_fill": by_hand(lambda scores, seen: scores.masked_fill(~seen, number)),
        "where": by_hand(lambda scores, seen: torch.where(seen, scores, hidden)),
        "where, no scores": by_hand(lambda scores, seen: scores + torch.where(seen, 0.0, hidden)),
        "added": by_hand(lambda scores, seen: scores + added(seen)),
        "times": by_hand(lambda scores, seen: scores + (1 - seen.float()) * max(number, -1e30)),
        "fused, bias": fused(lambda seen: added(seen) + by_distance(seen.shape[-1])),
        "bias": by_hand(lambda scores, seen: scores + (by_distance(seen.shape[-1]) + added(seen))),
        "bias, masked_fill": by_hand(
            lambda scores, seen: (scores + by_distance(seen.shape[-1])).masked_fill(~seen, number)
        ),
    }


def by_distance(count: int) -> Tensor:
    """A bias (head, query, key) of how far a key is from its query."""
    apart = torch.arange(count) - torch.arange(count)[:, None]
    return torch.stack([torch.sin(apart * (head + 1.0)) - 0.3 * apart.abs() for head in range(HEADS)])


def who_sees_whom(there: Tensor, *, causal: bool, rows: str) -> Tensor:
    """(text, 1, query, key) of texts with these tokens; `rows` says what queries of padding see."""
    num_texts, count = there.shape
    seen = there[:, None, None, :].expand(num_texts, 1, count, count)
    if causal:
        seen = seen & torch.ones(count, count, dtype=torch.bool).tril()
    if rows == "nothing" or (rows == "themselves" and causal):
        seen = seen & there[:, None, :, None]
    return seen | torch.eye(count, dtype=torch.bool) if rows == "themselves" else seen


def naive(weights: Tensor) -> dict[str, list[float]]:
    """The statistics of one text."""
    return naive_figures(weights, [*range(weights.shape[-1])])


def weights_alone(query: Tensor, key: Tensor, *, causal: bool, bias: Tensor | None = None) -> Tensor:
    """softmax(q k / sqrt(dim)) of one text without padding, in float64."""
    scores = (query.double() @ repeated(key).double().mT)[0] / DIM**0.5
    scores = scores if bias is None else scores + bias.double()
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return scores.softmax(dim=-1)


def padded(texts: Sequence[Tensor], side: str, extra: int) -> tuple[Tensor, Tensor]:
    """The texts as a batch, and where a token is."""
    count = max(len(text) for text in texts) + extra
    batch, there = torch.randn(len(texts), count, DIM), torch.zeros(len(texts), count, dtype=torch.bool)
    for number, text in enumerate(texts):
        own = side if side != "both" else ("left", "right", "middle")[number % 3]
        start = {"left": count - len(text), "right": 0, "middle": (count - len(text)) // 2}[own]
        batch[number, start : start + len(text)] = text
        there[number, start : start + len(text)] = True
    return batch, there


def assert_is_mean(seen: attncli.Recording, alone: Sequence[dict[str, list[float]]], within: float) -> None:
    heads = seen.heads
    for name in {*FIGURES} & alone[0].keys():
        for head, row in enumerate(heads):
            numbers = [text[name][head] for text in alone if not math.isnan(text[name][head])]
            mean = sum(numbers) / len(numbers) if numbers else None
            got = row[name]
            assert (got is None) == (mean is None), (name, head, got, mean)
            assert mean is None or abs(got - mean) <= within * (1 + abs(mean)), (name, head, got, mean)


def check_batch(
    layer: Attention,
    texts: Sequence[Tensor],
    batch: Tensor,
    there: Tensor,
    seen_by: Tensor,
    *,
    causal: bool = True,
    has_bias: bool = False,
) -> attncli.Recording:
    """Record a padded batch, and compare it with its texts by themselves."""
    seen = recorded(lambda: layer(batch, seen_by))
    alone = []
    for text in texts:
        query, key, _ = layer.parts(text[None], text[None])
        bias = by_distance(len(text)) if has_bias else None
        alone.append(naive(weights_alone(query, key, causal=causal, bias=bias)))
    assert_is_mean(seen, alone, 2e-5)
    (module,) = seen.modules
    assert (module.num_rows, module.padding) == (there.numel(), int((~there).sum()))
    return seen


def check_random_batch(seed: int) -> None:
    """A random layer and batch, in a random form of padding."""
    random.seed(seed)
    torch.manual_seed(seed)
    number = random.choice(NUMBERS)
    form, attend = random.choice([*forms(number).items()])
    causal, kv_heads = random.random() < 0.5, random.choice((HEADS, 2, 1))
    side, rows = random.choice(("left", "right", "both")), random.choice(("all", "nothing", "themselves"))
    lengths = [random.randint(2, 13) for _ in range(random.randint(1, 5))]
    layer = Attention(attend, kv_heads=kv_heads).eval()
    texts = [torch.randn(length, DIM) * 2 for length in lengths]
    batch, there = padded(texts, side, random.choice((0, 0, 3)))
    seen_by = who_sees_whom(there, causal=causal, rows=rows)
    seen = check_batch(layer, texts, batch, there, seen_by, causal=causal, has_bias="bias" in form)
    padding = int((~there).sum())
    note = f"{int(there.sum())} rows were measured; {padding} padding row"
    assert any(line.startswith(note) for line in seen.notes) == (padding > 0)


@pytest.mark.parametrize("seed", range(40))
def test_a_padded_batch_has_the_statistics_of_its_texts(seed: int) -> None:
    check_random_batch(seed)


def shifted_exponentials(number: float) -> Callable[..., Tensor]:
    """A softmax that is written as the exponential of scores minus the logarithm of their sum (Reformer)."""

    def attend(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
        scores = (query @ repeated(key).mT / DIM**0.5).masked_fill(~seen, number)
        shares = (scores - torch.logsumexp(scores, -1, keepdim=True).clamp(min=-1e30)).exp()
        return shares @ repeated(value)

    return attend


@pytest.mark.parametrize(
    ("number", "side"),
    [(-1e4, "both"), (-3e3, "left"), (-torch.inf, "right"), (SMALLEST, "both")],
)
def test_a_softmax_of_exponentials_hides_rows_as_another_does(number: float, side: str) -> None:
    torch.manual_seed(0)
    layer = Attention(shifted_exponentials(number), kv_heads=2).eval()
    texts = [torch.randn(length, DIM) for length in (7, 3, 5)]
    batch, there = padded(texts, side, 1)
    check_batch(layer, texts, batch, there, who_sees_whom(there, causal=True, rows="all"))


def seeing_themselves_too(there: Tensor, *, window: int | None = None, causal: bool = True) -> Tensor:
    """Who sees whom where queries of padding see the text, and themselves."""
    count = there.shape[1]
    seen = who_sees_whom(there, causal=causal, rows="all")
    if window is not None:
        seen = seen & torch.ones(count, count, dtype=torch.bool).triu(1 - window).tril(window - 1)
    return seen | (torch.eye(count, dtype=torch.bool) & ~there[:, None, :, None])


@pytest.mark.parametrize(("side", "lengths"), in_turn(["left", "right", "both"], [[8, 5, 3], [6, 2]]))
def test_padding_that_sees_the_text_and_itself_is_left_out(side: str, lengths: Sequence[int]) -> None:
    torch.manual_seed(0)
    layer = Attention(fused(lambda seen: seen)).eval()
    texts = [torch.randn(length, DIM) for length in lengths]
    batch, there = padded(texts, side, 4)
    check_batch(layer, texts, batch, there, seeing_themselves_too(there))


@pytest.mark.parametrize("causal", [True, False])
def test_padding_that_sees_itself_and_a_window_of_the_text_is_left_out(causal: bool) -> None:
    layer = Attention(fused(lambda seen: seen)).eval()
    batch, there = padded([torch.randn(6, DIM)], "right", 3)
    batch, there = functional.pad(batch, (0, 0, 2, 0)), functional.pad(there, (2, 0))
    seen = recorded(lambda: layer(batch, seeing_themselves_too(there, window=4, causal=causal)))
    assert (seen.modules[0].num_rows, seen.modules[0].padding) == (11, 5)


@pytest.mark.parametrize(("length", "is_said"), [(5, True), (8, False)])
def test_one_ambiguous_token_of_padding_is_noted_beside_longer_padding(length: int, is_said: bool) -> None:
    """A causal text of n tokens has the mask of one of n - 1 with a token of padding that sees itself."""
    layer = Attention(fused(lambda seen: seen)).eval()
    batch, there = padded([torch.randn(8, DIM), torch.randn(length, DIM)], "right", 0)
    notes = recorded(lambda: layer(batch, seeing_themselves_too(there))).notes
    assert any("the statistics may include rows of padding" in note for note in notes) == is_said


def test_the_leaves_of_a_tree_of_tokens_are_there() -> None:
    """They are hidden from each other, and each sees its own branch alone."""
    layer = Attention(fused(lambda seen: seen)).eval()
    tree = torch.ones(7, 7, dtype=torch.bool).tril()
    tree[4, 3] = tree[5, 4] = tree[6, 3] = tree[6, 5] = tree[5, 3] = False
    assert recorded(lambda: layer(torch.randn(1, 7, DIM), tree)).modules[0].padding == 0


def numbers_of(seen: attncli.Recording) -> list[dict[str, object]]:
    return [{name: row[name] for name in row if name != "max_score"} for row in seen.heads]


def assert_alike(one: attncli.Recording, both: attncli.Recording) -> None:
    """The same numbers, patterns and rows of two recordings of the same texts."""
    for a, b in zip(numbers_of(one), numbers_of(both), strict=True):
        for name in a.keys() | b.keys():
            x, y = a[name], b[name]
            assert y == (pytest.approx(x, abs=1e-6, rel=1e-5) if isinstance(x, float) else x), name
    assert [dict(row) for row in one.survey().pattern_rows] == [
        dict(row) for row in both.survey().pattern_rows
    ]


def recorded(run: Callable[[], object]) -> attncli.Recording:
    with attncli.record(calls="all") as seen, torch.no_grad():
        run()
    return seen


@pytest.mark.parametrize(
    ("case", "side"),
    in_turn(["keys alone", "causal", "numbers", "added keys", "fast path"], ["left", "right", "both"]),
)
def test_texts_of_torchs_own_attention(case: str, side: str) -> None:
    texts = [torch.randn(length, DIM) for length in (7, 3, 5)]
    batch, there = padded(texts, side, 2)
    settings = {"need_weights": case == "numbers"}
    attention: nn.Module = nn.MultiheadAttention(
        DIM, 2, batch_first=True, add_bias_kv=case == "added keys"
    ).eval()
    if case == "fast path":
        attention = nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True).eval()

    def call(x: Tensor, hides: Tensor | None) -> object:
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1) if case == "causal" else None
        if case == "fast path":
            return attention(x, src_key_padding_mask=hides)
        if hides is not None and case == "numbers":
            hides = torch.zeros(hides.shape).masked_fill(hides, -1e9)
        return attention(x, x, x, key_padding_mask=hides, attn_mask=later, **settings)

    one = recorded(lambda: [call(text[None], None) for text in texts])
    assert_alike(one, recorded(lambda: call(batch, ~there)))


@pytest.mark.parametrize("same_length", [False, True])
def test_queries_and_keys_of_cross_attention_have_separate_padding(same_length: bool) -> None:
    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True)
            self.decoder = nn.TransformerDecoderLayer(DIM, 2, 16, batch_first=True)

        def forward(
            self, source: Tensor, x: Tensor, hides: Tensor | None = None, later: Tensor | None = None
        ) -> Tensor:
            memory = self.encoder(source, src_key_padding_mask=hides)
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            return self.decoder(
                x, memory, tgt_mask=mask, tgt_key_padding_mask=later, memory_key_padding_mask=hides
            )

    model = Translator().eval()
    sources, texts = ([torch.randn(length, DIM) for length in lengths] for lengths in ((8, 4, 6), (3, 5, 2)))
    (batch, of_batch), (x, of_x) = padded(sources, "left", 0), padded(texts, "right", 3 if same_length else 1)
    assert (batch.shape == x.shape) == same_length
    one = recorded(lambda: [model(a[None], b[None]) for a, b in zip(sources, texts, strict=True)])
    both = recorded(lambda: model(batch, x, ~of_batch, ~of_x))
    assert_alike(one, both)
    assert {row.stack: (row.num_rows, row.padding) for row in both.modules if row.layer} == {
        "self": (x.shape[1] * 3, int((~of_x).sum()))
    }
    crossed = next(row for row in both.modules if row.stack == "cross")
    assert (crossed.num_rows, crossed.padding) == (x.shape[1] * 3, int((~of_x).sum()))


class TwoTexts(nn.Module):
    """Two texts that attend to themselves, and to each other."""

    def __init__(self, of_itself: Sequence[str]) -> None:
        super().__init__()
        self.of_itself = of_itself
        for name in ("first", "second", "first_to_second", "second_to_first"):
            self.add_module(name, nn.MultiheadAttention(DIM, 2, batch_first=True))

    def forward(self, texts: dict[str, Tensor], hides: dict[str, Tensor | None]) -> None:
        for name in self.of_itself:
            self.attend(name, texts[name], texts[name], hides[name])
        self.attend("first_to_second", texts["first"], texts["second"], hides["second"])
        self.attend("second_to_first", texts["second"], texts["first"], hides["first"])

    def attend(self, name: str, query: Tensor, key: Tensor, hides: Tensor | None) -> None:
        getattr(self, name)(query, key, key, key_padding_mask=hides)


@pytest.mark.parametrize("of_itself", [("first", "second"), ("second", "first")])
@pytest.mark.parametrize("lengths", [(6, 8, 2), (8, 8, 8)])
def test_texts_that_attend_to_each_other_have_their_own_padding(
    of_itself: Sequence[str], lengths: Sequence[int]
) -> None:
    model = TwoTexts(of_itself).eval()
    firsts, seconds = ([torch.randn(length, DIM) for length in each] for each in ((8, 3, 5), lengths))
    pairs = zip(firsts, seconds, strict=True)
    one = recorded(
        lambda: [
            model({"first": a[None], "second": b[None]}, {"first": None, "second": None}) for a, b in pairs
        ]
    )
    batches = {name: padded(each, "right", 0) for name, each in (("first", firsts), ("second", seconds))}
    both = recorded(
        lambda: model(
            {name: batch for name, (batch, _) in batches.items()},
            {name: ~there for name, (_, there) in batches.items()},
        )
    )
    assert_alike(one, both)


def test_queries_that_may_belong_to_two_texts_are_noted() -> None:
    """A third text is attended to, and the queries may be those of either of two others."""
    first, second, third = (nn.MultiheadAttention(DIM, 2, batch_first=True).eval() for _ in range(3))
    model = nn.ModuleDict({"first": first, "second": second, "third": third})
    x, hides = torch.randn(1, 6, DIM), torch.zeros(2, 1, 6, dtype=torch.bool)
    hides[0, :, 4:], hides[1, :, 2:] = True, True

    def run() -> None:
        first(x, x, x, key_padding_mask=hides[0])
        second(x, x, x, key_padding_mask=hides[1])
        third(x, x[:, :3] + 1, x[:, :3] + 1)

    model.forward = run
    notes = recorded(model).notes
    assert any(note.startswith("third: texts are padded, but it is unknown") for note in notes)


@pytest.mark.parametrize("number", [-torch.inf, SMALLEST, -1e4])
def test_generating_from_padded_texts_equals_generating_from_each(number: float) -> None:
    """The steps of a cache go on with the padded texts that the first call has read."""

    def attend(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
        scores = (query @ key.mT / DIM**0.5).masked_fill(~seen, number)
        return scores.softmax(dim=-1) @ value

    class Cached(nn.Module):
        def forward(self, *parts: Tensor) -> Tensor:
            return attend(*parts)

    layer = Cached().eval()
    texts = [torch.randn(length + 3, DIM) for length in (6, 2)]
    batch, there = padded(texts, "left", 0)
    seen_by = who_sees_whom(there, causal=True, rows="all")

    def run(x: Tensor, seen: Tensor) -> None:
        whole = torch.stack([x, x.roll(1, -1)], dim=1)
        begin = x.shape[1] - 3
        for start, stop in ((0, begin), *((end - 1, end) for end in range(begin + 1, x.shape[1] + 1))):
            keys = whole[:, :, :stop].clone()
            layer(whole[:, :, start:stop].clone(), keys, keys, seen[:, :, start:stop, :stop])

    def causal(count: int) -> Tensor:
        return torch.ones(1, 1, count, count, dtype=torch.bool).tril()

    one = recorded(lambda: run(texts[0][None], causal(len(texts[0]))))
    other = recorded(lambda: run(texts[1][None], causal(len(texts[1]))))
    both = recorded(lambda: run(batch, seen_by))
    for head, row in enumerate(both.heads):
        for name in FIGURES:
            numbers = [seen.heads[head][name] for seen in (one, other)]
            assert row[name] == pytest.approx(sum(numbers) / 2, rel=1e-5, abs=1e-6), name
    assert both.modules[0].texts == 2


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_batch_of_gpt_oss_equals_its_texts(side: str) -> None:
    """Sinks beside one key, windows, one expert per token: layers and numbers, against its own weights."""
    from transformers import GptOssConfig, GptOssForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 50, "num_hidden_layers": 2}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": 2, "head_dim": DIM, "sliding_window": 4}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 1, "pad_token_id": 0, "eos_token_id": 1}
    config = GptOssConfig(**sizes, **heads, **experts, attn_implementation="eager")
    model = GptOssForCausalLM(config).eval()
    texts = [torch.randint(2, 50, (length,)) for length in (11, 5, 1)]
    length = max(map(len, texts))
    ids, mask = torch.zeros(2, len(texts), length, dtype=torch.long)
    for row, text in enumerate(texts):
        places = slice(length - len(text), length) if side == "left" else slice(len(text))
        ids[row, places], mask[row, places] = text, 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with attncli.record(calls="all") as alone, torch.no_grad():
        outputs = [model(text[None], output_attentions=True) for text in texts]
    with attncli.record() as padded, torch.no_grad():
        model(ids, attention_mask=mask, position_ids=positions)
    own = [[output.attentions[layer][0].double() for output in outputs] for layer in (0, 1)]
    entropies = torch.stack(
        [torch.stack([-torch.xlogy(w, w).sum(-1).mean(-1) for w in of_layer]).mean(0) for of_layer in own]
    )
    for recorded in (alone, padded):
        assert [module.module for module in recorded.modules] == [
            "model.layers.0.self_attn",
            "model.layers.1.self_attn",
        ]
        assert recorded.heads.column("entropy").tolist() == pytest.approx(
            entropies.flatten().tolist(), abs=1e-5
        )


@pytest.mark.parametrize("num_heads", [1, 2])
def test_a_bias_by_the_place_from_the_last_hides_no_row(num_heads: int) -> None:
    """In a long text all of the first rows are far below 0, as in MPT."""
    query, key = torch.randn(1, num_heads, 620, DIM), torch.randn(1, num_heads, 620, DIM)
    slopes = torch.tensor([1.0, 0.25])[:num_heads, None, None]
    places, earlier = torch.arange(620.0) - 619, torch.ones(620, 620, dtype=torch.bool).tril()
    bias = (slopes * places).masked_fill(~earlier, -torch.inf)
    program = nn.Module()
    program.forward = lambda x: functional.scaled_dot_product_attention(x, key, key, attn_mask=bias[None])
    seen = recorded(lambda: program(query))
    weights = (query.double() @ key.double().mT / DIM**0.5 + bias).softmax(dim=-1)[0]
    entropy = -(weights * weights.clamp(min=1e-300).log()).sum(dim=-1).mean(dim=-1)
    assert [row.entropy for row in seen.heads] == pytest.approx(entropy.tolist(), rel=1e-5)
    assert seen.modules[0].padding == 0


def test_maps_and_names_leave_out_padding() -> None:
    layer = Attention(fused(lambda seen: seen)).eval()
    text = torch.randn(4, DIM)
    batch, there = padded([text], "left", 2)
    with attncli.record(tokens=["<pad>", "<pad>", "a", "b", "a", "c"]) as seen, torch.no_grad():
        layer(batch, who_sees_whom(there, causal=True, rows="all"))
    with attncli.record(tokens=["a", "b", "a", "c"]) as alone, torch.no_grad():
        layer(text[None], torch.ones(4, 4, dtype=torch.bool).tril())
    report, expected = seen.report(), alone.report()
    assert report.tokens == expected.tokens == ("a", "b", "a", "c")
    maps, of_text = (torch.as_tensor(each.tensors["weights"].values) for each in (report, expected))
    torch.testing.assert_close(maps, of_text)
    assert_alike(alone, seen)
    assert seen.survey().num_tokens == 4 and seen.heads[0].induction is not None


def test_texts_that_have_no_token_are_left_out() -> None:
    layer = Attention(fused(lambda seen: seen)).eval()
    texts = [torch.randn(5, DIM), torch.randn(0, DIM)]
    batch, there = padded(texts, "right", 0)
    seen = recorded(lambda: layer(batch, who_sees_whom(there, causal=False, rows="nothing")))
    alone = naive(weights_alone(*layer.parts(texts[0][None], texts[0][None])[:2], causal=False))
    assert_is_mean(seen, [alone], 2e-5)
    assert seen.modules[0].nan_texts == 0


@pytest.mark.parametrize("strict", [False, True])
def test_the_last_token_of_a_text_whose_tokens_do_not_see_themselves_is_there(strict: bool) -> None:
    layer = Attention(fused(lambda seen: seen)).eval()
    seen = recorded(
        lambda: layer(torch.randn(1, 6, DIM), torch.ones(6, 6, dtype=torch.bool).tril(-int(strict)))
    )
    assert seen.modules[0].padding == 0


def test_ambiguous_padding_is_noted() -> None:
    """More keys than queries: which of the queries stand at the hidden keys nothing tells."""
    query, key = torch.randn(2, 2, 4, DIM), torch.randn(2, 2, 6, DIM)
    seen_keys = torch.ones(2, 1, 4, 6, dtype=torch.bool)
    seen_keys[1, ..., 4:] = False

    class Mixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(x, key, key, attn_mask=seen_keys)

    notes = recorded(lambda: Mixed()(query)).notes
    assert any("the statistics may include rows of padding" in note for note in notes)


def test_nan_is_noted_in_padding_and_elsewhere() -> None:
    """A row without a key is NaN by hand: in padding it is said, elsewhere its heads have no statistics."""
    layer = Attention(by_hand(lambda scores, seen: scores.masked_fill(~seen, -torch.inf))).eval()
    x = torch.randn(2, 5, DIM)
    there = torch.ones(2, 5, dtype=torch.bool)
    there[1, :2] = False
    padding = recorded(lambda: layer(x, who_sees_whom(there, causal=True, rows="all")))
    assert any("2 padding rows were left out, 2 of them NaN" in note for note in padding.notes)
    assert all(row.entropy is not None for row in padding.heads)
    hidden = torch.ones(1, 1, 5, 5, dtype=torch.bool)
    hidden[..., 3, :] = False
    rows = recorded(lambda: layer(x, hidden))
    assert all(row.entropy is None and row.sink_mass is None for row in rows.heads)
    assert any(note.startswith("NaN in weights of Attention, in 2 texts") for note in rows.notes)
    one_query = x.clone()
    one_query[0, 2] = torch.nan
    fused_layer = Attention(fused(lambda seen: seen)).eval()
    of_query = recorded(lambda: fused_layer(one_query, torch.ones(5, 5, dtype=torch.bool).tril()))
    assert any(note.startswith("NaN in weights of Attention, in 1 text") for note in of_query.notes)


@pytest.mark.nightly
def test_many_padded_batches_are_their_texts() -> None:
    for seed in range(1000, 1400):
        check_random_batch(seed)
