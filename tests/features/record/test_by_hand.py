"""Attention that a program computes itself is heard with its own tensors; what is none is not."""

import gc
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from attncli.features.record.listening.by_hand import follow
from attncli.features.record.listening.followed import HandmadeAttention
from attncli.features.record.listening.follower import Follower
from attncli.features.record.listening.kernels import NotHeard

TEXTS, HEADS, QUERIES, KEYS, DIM = 2, 3, 5, 7, 4
WIDTH = HEADS * DIM


class Following(TorchFunctionMode):
    """Hands every function to a follower; `heard` are the attentions."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[HandmadeAttention] = []
        self.follower = Follower(self.hear)

    def hear(self, read: Callable[[], HandmadeAttention]) -> None:
        with suppress(NotHeard):
            self.heard.append(read())

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        result = function(*arguments, **(named or {}))
        follow(self.follower, function, arguments, named or {}, result)
        return result


def heard_of(program: Callable[[], object]) -> list[HandmadeAttention]:
    """The attentions of a program, whose result is that without being followed."""
    state = torch.get_rng_state()
    plain = program()
    torch.set_rng_state(state)
    with Following() as following:
        result = program()
    if isinstance(plain, Tensor) and isinstance(result, Tensor):
        assert plain.equal(result)
    return following.heard


def the_one(program: Callable[[], object]) -> HandmadeAttention:
    (heard,) = heard_of(program)
    return heard


def check_product(heard: HandmadeAttention) -> None:
    """The weights follow from the scores; these differ from the product only by what was added."""
    assert heard.query is not None and heard.key is not None
    torch.testing.assert_close(heard.scores.softmax(-1).to(heard.weights), heard.weights, rtol=0, atol=1e-6)
    assert (heard.query @ heard.key.mT).shape == heard.scores.shape


def check_scaled(heard: HandmadeAttention, *, rest: Tensor | float = 0.0) -> None:
    """softmax(scale q k^T + rest) are the weights."""
    check_product(heard)
    assert heard.query is not None and heard.key is not None
    again = (heard.scale * heard.query @ heard.key.mT + rest).softmax(-1)
    torch.testing.assert_close(again, heard.weights.to(again), rtol=0, atol=1e-6)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(3)


@pytest.fixture
def query() -> Tensor:
    return torch.randn(TEXTS, HEADS, QUERIES, DIM)


@pytest.fixture
def key() -> Tensor:
    return torch.randn(TEXTS, HEADS, KEYS, DIM)


@pytest.fixture
def value() -> Tensor:
    return torch.randn(TEXTS, HEADS, KEYS, DIM + 1)


class Layer(nn.Module):
    """nanoGPT's layer, with the product, softmax and layout of the subclass."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.to_qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.to_out = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("bias", torch.tril(torch.ones(11, 11)).view(1, 1, 11, 11))
        self.weights: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        texts, tokens, width = x.shape
        q, k, v = self.to_qkv(x).split(width, dim=2)
        q, k, v = (part.view(texts, tokens, HEADS, DIM).transpose(1, 2) for part in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :tokens, :tokens] == 0, float("-inf"))
        self.weights = att = functional.softmax(att, dim=-1)
        y = self.drop(att) @ v
        return self.to_out(y.transpose(1, 2).contiguous().view(texts, tokens, width))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_nanogpt_layer_is_recorded_before_dropout(dropout: float) -> None:
    layer, x = Layer(dropout), torch.randn(TEXTS, QUERIES, WIDTH)
    heard = the_one(lambda: layer(x))
    assert layer.weights is not None and heard.weights.equal(layer.weights)
    hidden = torch.full((QUERIES, QUERIES), -torch.inf).triu(1)
    check_scaled(heard, rest=hidden)
    assert heard.scale == pytest.approx(DIM**-0.5) and heard.is_self is True
    assert heard.value is not None and heard.value.shape == (TEXTS, HEADS, QUERIES, DIM)
    assert not heard.weights.requires_grad and heard.query is not None and not heard.query.requires_grad


def _inplace(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.mT)
    scores /= 4.0
    scores *= 2
    scores += 1.0
    return functional.dropout(scores.softmax(-1), 0.5, True, inplace=True).matmul(v)


def _additive_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.div(q @ k.transpose(2, 3), torch.tensor(2.0))
    return torch.softmax(scores - scores.amax(-1, keepdim=True), -1, dtype=torch.float64).to(v.dtype) @ v


def _bmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (part.reshape(-1, *part.shape[2:]) for part in (q, k, v))
    scores = torch.bmm(q * 0.5, k.transpose(1, 2)).view(TEXTS, HEADS, QUERIES, KEYS)
    weights = scores.softmax(-1).view(-1, QUERIES, KEYS)
    return torch.bmm(functional.dropout(weights, 0.25), v)


def _baddbmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (part.flatten(0, 1) for part in (q, k, v))
    scores = torch.baddbmm(torch.zeros(1), q, k.mT, beta=0, alpha=0.5).unflatten(0, (TEXTS, HEADS))
    return torch.baddbmm(torch.zeros(1), scores.softmax(-1).flatten(0, 1), v)


def _einsum_of_queries_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (part.permute(2, 0, 1, 3) for part in (q, k, v))
    scores = torch.einsum("ibnd,jbnd->ijbn", q, k).mul_(0.5)
    return torch.einsum("ijbn,jbnd->ibnd", scores.softmax(dim=1), v)


def _einsum_with_ellipses(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("...ij,...jd", (torch.einsum("...id,...jd->...ij", q, k) / 2).softmax(-1), v)


def _by_dunders(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = 0.5 * q.__matmul__(k.mT)
    weights = torch.special.softmax(0.0 + scores.float(), -1)
    return v.__rmatmul__(weights)


PROGRAMS = [
    *(_inplace, _additive_mask, _bmm, _baddbmm, _einsum_of_queries_first, _einsum_with_ellipses, _by_dunders),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_spelling_of_attention_gives_the_same_weights(
    program: Callable[[Tensor, Tensor, Tensor], Tensor], query: Tensor, key: Tensor, value: Tensor
) -> None:
    heard = the_one(lambda: program(query.clone(), key.clone(), value.clone()))
    exact = (0.5 * query @ key.mT).softmax(-1)
    torch.testing.assert_close(heard.weights.float(), exact, rtol=0, atol=1e-6)
    check_scaled(heard)
    assert heard.scale == pytest.approx(1.0 if program is _bmm else 0.5)
    assert heard.key is not None and heard.key.equal(key)
    assert heard.value is not None and heard.value.equal(value)


def test_one_query_without_an_axis_is_a_row() -> None:
    hidden, memory = torch.randn(TEXTS, DIM), torch.randn(TEXTS, KEYS, DIM)

    def luong() -> Tensor:
        scores = torch.bmm(memory, hidden.unsqueeze(2)).squeeze(2)
        return torch.bmm(scores.softmax(1).unsqueeze(1), memory)

    def by_labels() -> Tensor:
        return torch.einsum("bn,bnd->bd", torch.einsum("bd,bnd->bn", hidden, memory).softmax(-1), memory)

    for program in (luong, by_labels):
        heard = the_one(program)
        assert heard.weights.shape == (TEXTS, 1, KEYS)
        check_scaled(heard)


@pytest.mark.parametrize("tokens", [1, 2])
def test_sizes_of_one_lose_no_axis(tokens: int) -> None:
    query, key = torch.randn(1, 1, tokens, DIM), torch.randn(1, 1, 1, DIM)
    program = lambda: (query @ key.mT).view(1, tokens, 1).softmax(-1) @ key.view(1, 1, DIM)  # noqa: E731
    heard = the_one(program)
    assert heard.weights.shape == (1, tokens, 1)
    check_scaled(heard)


def test_pixels_are_tokens_and_weights_stand_on_the_right() -> None:
    """LDM's AttnBlock: convolutions, and values by turned weights."""
    norm = nn.GroupNorm(2, DIM)
    to_query, to_key, to_value = (nn.Conv2d(DIM, DIM, 1) for _ in range(3))
    picture, kept = torch.randn(TEXTS, DIM, 3, 5), []

    def block() -> Tensor:
        hidden = norm(picture)
        q = to_query(hidden).reshape(TEXTS, DIM, 15).permute(0, 2, 1)
        k, v = to_key(hidden).reshape(TEXTS, DIM, 15), to_value(hidden).reshape(TEXTS, DIM, 15)
        weights = functional.softmax(torch.bmm(q, k) * int(DIM) ** -0.5, dim=2)
        kept[:] = [weights]
        return torch.bmm(v, weights.permute(0, 2, 1)).reshape(TEXTS, DIM, 3, 5)

    heard = the_one(block)
    assert heard.weights.equal(kept[0]) and heard.is_self is True
    check_scaled(heard)
    assert heard.value is not None and heard.value.equal(to_value(norm(picture)).flatten(2).mT)


def test_a_bias_and_a_mask_of_windows_are_the_rest() -> None:
    """Swin: windows and texts on one axis, a bias between heads, a mask between windows."""
    windows = 3
    x = torch.randn(TEXTS * windows, QUERIES, WIDTH)
    to_qkv, bias = nn.Linear(WIDTH, 3 * WIDTH), torch.randn(HEADS, QUERIES, QUERIES)
    mask = torch.where(torch.rand(windows, QUERIES, QUERIES) > 0.5, -10.0, 0.0)
    kept = []

    def swin() -> Tensor:
        qkv = to_qkv(x).reshape(len(x), QUERIES, 3, HEADS, DIM).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q * DIM**-0.5) @ k.transpose(-2, -1)
        attn = attn + bias.unsqueeze(0)
        attn = attn.view(TEXTS, windows, HEADS, QUERIES, QUERIES) + mask.unsqueeze(1).unsqueeze(0)
        attn = attn.view(-1, HEADS, QUERIES, QUERIES).softmax(dim=-1)
        kept[:] = [attn]
        return (attn @ v).transpose(1, 2).reshape(len(x), QUERIES, WIDTH)

    heard = the_one(swin)
    assert heard.weights.equal(kept[0]) and heard.is_self is True
    check_scaled(heard, rest=bias + mask.repeat(TEXTS, 1, 1).unsqueeze(1))


def test_a_temperature_of_each_head_is_a_factor_of_the_queries(query: Tensor, key: Tensor) -> None:
    """Swin 2: cosines, times a number of each head."""
    temperature = nn.Parameter(torch.randn(HEADS, 1, 1))
    q, k = (functional.normalize(part, dim=-1) for part in (query, key))
    check_scaled(the_one(lambda: (q @ k.mT * temperature.exp()).softmax(-1) @ key))
    per_query = torch.rand(QUERIES, 1) + 0.5
    check_scaled(the_one(lambda: (per_query * (q @ k.mT)).softmax(-1) @ key))
    per_key = torch.rand(KEYS) + 0.5
    check_scaled(the_one(lambda: (q @ k.mT / per_key).softmax(-1) @ key))


def test_a_soft_cap_and_old_masks_are_the_rest(query: Tensor, key: Tensor) -> None:
    def capped() -> Tensor:
        scores = query @ key.mT / 3
        return (torch.tanh(scores / 20.0) * 20.0).softmax(-1) @ key

    heard = the_one(capped)
    check_product(heard)
    assert heard.scale == pytest.approx(1 / 3)
    seen = torch.ones(QUERIES, KEYS).tril(2)
    heard = the_one(lambda: (query @ key.mT * seen - 1e4 * (1 - seen)).softmax(-1) @ key)
    check_scaled(heard, rest=torch.zeros(QUERIES, KEYS).masked_fill(seen == 0, -1e4))


def test_of_several_products_the_first_counts(query: Tensor, key: Tensor) -> None:
    """DeBERTa, Transformer-XL: a product with positions is added."""
    positions = torch.randn(HEADS, KEYS, DIM)

    def program() -> Tensor:
        content = torch.matmul(query, key.mT)
        return ((content + query @ positions.mT) * 0.5).softmax(-1) @ key

    check_scaled(the_one(program), rest=0.5 * query @ positions.mT)


def test_axes_that_may_be_queries_or_heads_are_a_guess(query: Tensor, key: Tensor) -> None:
    """Equations of tensors that come from nowhere, in which keys have no heads."""
    shared, by_queries = key[:, 0], query.transpose(1, 2)

    def unknown() -> Tensor:
        weights = torch.einsum("bihd,bjd->ibhj", by_queries, shared).softmax(-1)
        return torch.einsum("ibhj,bjd->bihd", weights, shared)

    def projected() -> Tensor:
        heads = nn.Linear(DIM, WIDTH)(by_queries[:, :, 0]).view(TEXTS, QUERIES, HEADS, DIM)
        weights = torch.einsum("bihd,bjd->ibhj", heads, shared).softmax(-1)
        return torch.einsum("ibhj,bjd->bihd", weights, shared)

    assert the_one(unknown).is_guess
    heard = the_one(projected)
    assert not heard.is_guess and heard.weights.shape == (TEXTS, HEADS, QUERIES, KEYS)
    assert heard.num_heads == HEADS
    assert not the_one(lambda: (query @ key.mT).softmax(-1) @ key).is_guess


def test_a_normalised_mixture_of_heads_leaves_the_weights_of_the_softmax(query: Tensor, key: Tensor) -> None:
    """DeepViT: mixtures are normalised to a mean of 0, and so no longer shares."""
    mixer, norm, kept = nn.Parameter(torch.randn(HEADS, HEADS)), nn.LayerNorm(HEADS), []

    def program() -> Tensor:
        kept[:] = [(query @ key.mT).softmax(-1)]
        mixed = torch.einsum("bhij,hg->bgij", kept[0], mixer)
        return norm(mixed.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) @ key

    heard = the_one(program)
    torch.testing.assert_close(heard.weights, kept[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(heard.scores, query @ key.mT)


def test_a_sink_is_cut_off(query: Tensor, key: Tensor) -> None:
    sink = nn.Parameter(torch.randn(1, HEADS, 1, 1))

    def program() -> Tensor:
        scores = torch.cat([query @ key.mT, sink.expand(TEXTS, -1, QUERIES, -1)], dim=-1)
        return scores.softmax(-1)[..., :-1] @ key

    heard = the_one(program)
    exact = torch.cat([query @ key.mT, sink.expand(TEXTS, -1, QUERIES, -1)], dim=-1).softmax(-1)[..., :-1]
    torch.testing.assert_close(heard.weights, exact, rtol=0, atol=1e-6)
    assert heard.query is None and heard.weights.shape[-1] == KEYS


@pytest.mark.parametrize("queries", [1, 2])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_sink_beside_the_only_key_is_cut_off(queries: int, is_first: bool) -> None:
    query, key = torch.randn(TEXTS, HEADS, queries, DIM), torch.randn(TEXTS, HEADS, 1, DIM)
    sink = torch.randn(TEXTS, HEADS, queries, 1)
    kept = slice(1, None) if is_first else slice(-1)

    def shares() -> Tensor:
        scores = [query @ key.mT, sink]
        return torch.cat(scores[::-1] if is_first else scores, dim=-1).softmax(-1)[..., kept]

    heard = the_one(lambda: shares() @ key)
    torch.testing.assert_close(heard.weights, shares(), rtol=0, atol=1e-6)


def test_rows_that_see_nothing_are_as_the_program_fills_them(query: Tensor, key: Tensor) -> None:
    hidden = torch.zeros(QUERIES, KEYS, dtype=torch.bool)
    hidden[1] = True

    def program() -> Tensor:
        scores = (query @ key.mT).masked_fill(hidden, -torch.inf)
        return functional.dropout(scores.softmax(-1).nan_to_num(0.0), 0.5) @ key

    heard = the_one(program)
    assert not heard.weights.isnan().any() and not heard.weights[:, :, 1].any()
    assert torch.allclose(heard.weights.sum(-1)[:, :, 0], torch.ones(()))


# Attention that is no product of query and key


def test_other_softmaxes_are_not_recorded() -> None:
    x = torch.randn(TEXTS, KEYS, WIDTH)
    router, classes = nn.Linear(WIDTH, 6), nn.Embedding(6, WIDTH)
    experts, to_qkv = torch.randn(TEXTS, 6, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
    to_maps = nn.Conv2d(4, 3 * WIDTH, 1)
    picture = torch.randn(TEXTS, 4, 3, 5)

    def mixture_of_experts() -> Tensor:
        return torch.einsum("bte,bed->btd", router(x).softmax(-1), experts)

    def expected_embedding() -> Tensor:
        return functional.softmax(router(x), dim=-1) @ classes.weight

    def efficient_attention() -> Tensor:
        """Shen and others 2021, after x-unet and lucidrains' linear attention."""
        q, k, v = (part.reshape(TEXTS, KEYS, HEADS, DIM).transpose(1, 2) for part in to_qkv(x).chunk(3, -1))
        context = torch.einsum("bhnd,bhne->bhde", k.softmax(-2), v)
        return torch.einsum("bhnd,bhde->bhne", q.softmax(-1), context)

    def linear_attention_of_pictures() -> Tensor:
        q, k, v = (part.reshape(TEXTS, HEADS, DIM, 15) for part in to_maps(picture).chunk(3, 1))
        context = torch.einsum("bhdn,bhen->bhde", k.softmax(-1), v)
        return torch.einsum("bhde,bhdn->bhen", context, q.softmax(-2))

    def of_channels() -> Tensor:
        return to_maps(picture).softmax(1).flatten(2) @ torch.randn(TEXTS, 15, 2)

    def an_unused_softmax() -> Tensor:
        return (x @ x.mT).softmax(-1).sum()

    def a_product_without_softmax() -> Tensor:
        return (x @ x.mT) @ x

    for program in (
        mixture_of_experts,
        expected_embedding,
        efficient_attention,
        linear_attention_of_pictures,
    ):
        assert heard_of(program) == [], program.__name__
    for program in (of_channels, an_unused_softmax, a_product_without_softmax):
        assert heard_of(program) == [], program.__name__


@pytest.mark.parametrize(
    ("num_tokens", "picks", "num_experts"),
    [
        *((KEYS, picks, 2) for picks in ("topk", "sort", "scatter", "unfollowed", "none")),
        *((1, "topk", 1), (1, "none", 1), (KEYS, "scatter", 1), (KEYS, "unfollowed", 1)),
        *((0, "topk", 2), (0, "none", 1)),
    ],
)
def test_experts_chosen_by_a_router_are_not_keys(num_tokens: int, picks: str, num_experts: int) -> None:
    """As in GPT-OSS, Granite MoE and Phi-MoE; what the next layer attends with is heard as it is."""
    x, to_state = torch.randn(TEXTS, num_tokens, WIDTH), nn.Linear(WIDTH, WIDTH)
    router, norm = nn.Linear(WIDTH, num_experts if picks == "none" else 4), nn.LayerNorm(WIDTH)
    experts = torch.randn(TEXTS, num_tokens, num_experts, WIDTH)

    def routed() -> Tensor:
        scores = router(to_state(x))
        if picks == "topk":
            scores = scores.topk(num_experts, dim=2).values
        elif picks == "sort":
            scores = scores.sort(-1).values[..., -num_experts:]
        elif picks == "scatter":
            places = scores.argsort(-1)
            shares = scores.scatter(-1, places[..., :-num_experts], -torch.inf).softmax(-1)
            return norm(x + (shares.gather(-1, places[..., -num_experts:]).unsqueeze(-1) * experts).sum(-2))
        elif picks == "unfollowed":
            shares = torch.cumsum(scores, -1).softmax(-1)[..., -num_experts:]
            return norm(x + (shares.unsqueeze(-1) * experts).sum(-2))
        return norm(x + (scores.softmax(-1).unsqueeze(-1) * experts).sum(-2))

    heard = heard_of(lambda: _attended(to_state(routed()), routed()))
    assert len(heard) == (num_tokens > 0)
    for each in heard:
        torch.testing.assert_close(each.weights, (to_state(routed()) @ routed().mT).softmax(-1))


# Where query and key come from


def _attended(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1) @ k


def test_self_and_cross_attention_are_distinguished() -> None:
    to_query, to_key, norm = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
    x, memory = torch.randn(TEXTS, QUERIES, WIDTH), torch.randn(TEXTS, KEYS, WIDTH)
    cosine, sine = torch.randn(QUERIES, WIDTH), torch.randn(QUERIES, WIDTH)
    first, second = nn.Linear(WIDTH, DIM), nn.Linear(WIDTH, DIM)
    from_first, from_second = nn.Linear(DIM, WIDTH), nn.Linear(DIM, WIDTH)
    two = torch.randn(2 * TEXTS, KEYS, WIDTH)

    def rotated(part: Tensor) -> Tensor:
        one, other = part.chunk(2, dim=-1)
        return part * cosine + torch.cat([-other, one], dim=-1) * sine

    def with_rotary() -> Tensor:
        return _attended(rotated(to_query(x)), rotated(to_key(x)))

    def with_cache() -> Tensor:
        return _attended(to_query(x[:, -1:]), torch.cat([memory, to_key(x[:, -1:])], dim=1))

    def with_norms() -> Tensor:
        return _attended(to_query(norm(x)), to_key(norm(x)))

    def with_low_ranks() -> Tensor:
        """DeepSeek's."""
        return _attended(from_first(first(x)), from_second(second(x)))

    def with_keys_in_parts() -> Tensor:
        keys = torch.empty(TEXTS, QUERIES, WIDTH)
        keys[..., :2].copy_(to_key(x)[..., :2])
        keys[..., 2:] = to_key(x)[..., 2:]
        return _attended(to_query(x), keys)

    def with_fewer_keys() -> Tensor:
        """Segformer's."""
        reduced = norm(to_key(x)[:, ::2])
        return _attended(to_query(x), to_key(reduced))

    def of_itself() -> Tensor:
        return _attended(x, x)

    def crossed() -> Tensor:
        return _attended(rotated(to_query(norm(x))), to_key(norm(memory)))

    def unknown() -> Tensor:
        return _attended(x, memory)

    def halves() -> Tensor:
        return _attended(to_query(two[:TEXTS]), to_key(two[TEXTS:]))

    for program in (
        with_rotary,
        with_cache,
        with_norms,
        with_low_ranks,
        with_fewer_keys,
        of_itself,
        with_keys_in_parts,
    ):
        assert the_one(program).is_self is True, program.__name__
    assert the_one(crossed).is_self is False
    assert the_one(unknown).is_self is None and the_one(halves).is_self is None


# The program is left alone


def test_gradients_are_the_same_and_no_tensor_is_kept() -> None:
    layer, x = Layer(0.25), torch.randn(TEXTS, QUERIES, WIDTH)

    def step() -> list[Tensor]:
        torch.manual_seed(5)
        layer.zero_grad()
        layer(x).square().sum().backward()
        return [part.grad.clone() for part in layer.parameters() if part.grad is not None]

    plain = step()
    with Following() as following:
        followed = step()
    assert all(one.equal(other) for one, other in zip(plain, followed, strict=True))
    assert len(following.heard) == 1
    kept = [ref(part) for part in (following.heard[0].weights, following.heard[0].scores)]
    following.heard.clear()
    following.follower.clear()
    gc.collect()
    assert [part() for part in kept] == [None, None]


def test_facts_are_dropped_with_their_tensor(query: Tensor, key: Tensor) -> None:
    with Following() as following:
        scores = query @ key.mT
        weights = scores.softmax(-1)
        storage = ref(scores.untyped_storage())
        assert len(following.follower._followed) == 2
        del scores, weights
        gc.collect()
        assert not following.follower._followed
    assert storage() is None


def test_without_gradients_and_in_inference_mode(query: Tensor, key: Tensor) -> None:
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            check_scaled(the_one(lambda: ((query @ key.mT) / 2).softmax(-1) @ key))


def test_keys_projected_to_fewer_tokens_are_recorded() -> None:
    """Linformer: the projection is of tokens, and makes keys rather than features."""
    x, to_query, to_key = torch.randn(TEXTS, KEYS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    fewer = nn.Parameter(torch.randn(KEYS, QUERIES))

    def linformer() -> Tensor:
        keys = torch.einsum("bnd,nk->bkd", to_key(x), fewer).view(TEXTS, QUERIES, HEADS, DIM).transpose(1, 2)
        queries = to_query(x).view(TEXTS, KEYS, HEADS, DIM).transpose(1, 2)
        weights = torch.einsum("bhnd,bhkd->bhnk", queries, keys).softmax(-1)
        return torch.einsum("bhnk,bhkd->bhnd", weights, keys)

    heard = the_one(linformer)
    check_scaled(heard)
    assert heard.weights.shape == (TEXTS, HEADS, KEYS, QUERIES)


def test_graph_attention_is_recorded() -> None:
    """Velickovic and others 2018: a leaky_relu of a sum of two projections, over neighbours."""
    features, halves = nn.Linear(5, 8, bias=False), nn.Parameter(torch.randn(16, 1))
    x, is_edge = torch.randn(11, 5), (torch.rand(11, 11) < 0.3) | torch.eye(11, dtype=torch.bool)

    def scores(hidden: Tensor) -> Tensor:
        added = hidden @ halves[:8].to(hidden) + (hidden @ halves[8:].to(hidden)).mT
        return functional.leaky_relu(added, 0.2).masked_fill(~is_edge, -9e15)

    def program() -> Tensor:
        hidden = features(x)
        mixed: Tensor = functional.dropout(scores(hidden).softmax(1), 0.0) @ hidden
        return mixed

    exact = scores(features(x).double()).softmax(1)
    torch.testing.assert_close(the_one(program).weights.double(), exact, rtol=0, atol=1e-6)


def test_distances_and_other_products_are_scores() -> None:
    to_query, to_key, x = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), torch.randn(KEYS, DIM)
    texts = torch.randn(TEXTS, KEYS, DIM)

    def query(given: Tensor) -> Tensor:
        return torch.as_tensor(to_query(given))

    def key(given: Tensor) -> Tensor:
        return torch.as_tensor(to_key(given))

    programs: list[tuple[Callable[[], Tensor], Tensor]] = [
        (lambda: torch.inner(query(x), key(x)).softmax(-1) @ x, query(x).double() @ key(x).double().mT),
        (
            lambda: (-torch.cdist(query(texts), key(texts))).softmax(-1) @ texts,
            -(query(texts).double()[:, :, None] - key(texts).double()[:, None]).square().sum(-1).sqrt(),
        ),
    ]
    for program, scores in programs:
        heard = the_one(program)
        torch.testing.assert_close(heard.weights.double(), scores.softmax(-1), rtol=0, atol=1e-6)


def test_logits_of_normalised_parameters_are_not_attention() -> None:
    """The cosine router of Swin-MoE."""
    x, centres, experts = torch.randn(14, WIDTH), nn.Parameter(torch.randn(6, WIDTH)), torch.randn(6, WIDTH)

    def router() -> Tensor:
        logits = functional.normalize(x, dim=-1) @ functional.normalize(centres, dim=-1).mT
        return logits.softmax(-1) @ experts

    assert heard_of(router) == []
