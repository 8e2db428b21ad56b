"""What a running model hands over through transformers' interface: one layer's attention at a time."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from math import prod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask
from transformers.utils.generic import ModelOutput

from attncli.core.engines import FusedAttention, attend, attention_output
from attncli.core.layer import AttentionLayer, ScoreRules, Visibility, Wanted
from attncli.core.mask_tensors import HIDDEN_BY_A_HEAD, HIDES, split_mask
from attncli.core.process import SharedChange
from attncli.core.row_tiles import TILE, GivenWeights
from attncli.models.architectures import ARGUMENTS_WITHOUT_EFFECT, layer_kind, layer_number, layer_stack
from attncli.models.patched_heads import NamedModel, OpenItems, RunningLayer, patched_layer
from attncli.models.token_places import Origin


class CannotShow(Exception):
    """What a model computes is no attention that attn can show; the message says where and why."""


class StopCapture(Exception):
    """Raised by a consumer that needs no further layer."""


@dataclass(frozen=True, repr=False)
class CapturedLayer:
    """One call of an attention module: its attention, or its weights where the model gives nothing else.

    `module` is the qualified name in the model, `kind` self or cross. `stack` is encoder or decoder where the
    model has both, else empty. `layer` counts within a stack and kind.
    """

    module: str
    stack: str
    kind: str
    layer: int
    attention: AttentionLayer | GivenWeights

    def __repr__(self) -> str:
        sizes = " x ".join(map(str, self.attention.shape))
        return f"<CapturedLayer {self.module}: {self.kind}, {sizes}>"

    @property
    def stack_name(self) -> str:
        """encoder, decoder or cross; self in a model of one stack."""
        return self.kind if self.kind == "cross" or not self.stack else self.stack

    def weights(self) -> Float[Tensor, "text head query key"]:
        """p = softmax(scores) over the keys that each query sees; 0 on the others."""
        weights = attend(self.attention, Wanted(weights=True)).weights
        assert weights is not None
        return weights

    def copied(self) -> "CapturedLayer":
        """The layer as it is now: some models reuse the memory."""
        attention = self.attention
        if not isinstance(attention, AttentionLayer):
            return self
        query, key, value = attention.query.clone(), attention.key.clone(), attention.value.clone()
        return replace(self, attention=replace(attention, query=query, key=key, value=value))


Consumer = Callable[[CapturedLayer], Float[Tensor, "text head query value_dim"] | None]
"""Takes a layer and gives its output, or None where it has not computed it."""


@dataclass
class Numbering:
    """Names for the layers of one run of a model, in the order of their calls.

    A layer has the number in its module's name, but where one module serves several layers (ALBERT), each
    call counts as a layer and gets the next number. Raises CannotShow where queries and keys are not the
    `num_tokens` of the text and of its context (by default the text itself), or texts not `num_texts`, as
    with windows of a grid. Only layers of the module `part` are named.
    """

    has_two_stacks: bool
    num_tokens: tuple[int, int] | None
    num_texts: int | None = None
    part: str = ""
    taken: defaultdict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))

    def layer(
        self, module: str, kind: str, attention: AttentionLayer | GivenWeights, stack: str | None = None
    ) -> CapturedLayer:
        """The layer of this call of a module; without a given stack, its name tells the stack."""
        if stack is None:
            stack = layer_stack(module) if self.has_two_stacks else ""
        if self.num_texts not in (None, attention.shape[0]):
            raise CannotShow(f"{module} attends within windows or groups of tokens")
        if self.num_tokens is not None:
            self._check_counts(module, stack, kind, attention.shape[2:], self.num_tokens)
        taken = self.taken[stack, kind]
        number = layer_number(module)
        if number in taken:
            number = max(taken) + 1
        taken.add(number)
        return CapturedLayer(module, stack, kind, number, attention)

    def _check_counts(
        self, module: str, stack: str, kind: str, got: tuple[int, ...], num_tokens: tuple[int, int]
    ) -> None:
        text, context = num_tokens
        queries = context if stack == "encoder" else text
        keys = context if kind == "cross" else queries
        if got != (queries, keys):
            raise CannotShow(
                f"{module} has {got[0]} queries and {got[1]} keys where the texts have {queries} and {keys} "
                "tokens"
            )


@dataclass
class RunsNumbering(Numbering):
    """Names for the layers of a caller's runs of a model, and of its parts, which may run by themselves.

    Layers are numbered anew in each run of a model, of which `running` are those that go on, the outermost
    first. A layer that the caller runs by itself, or a backward pass again, has the number that its module
    had in a run; where none was, that of its name. Raises CannotShow for one of a module that serves several
    layers: `shares_modules` says of a model that its modules are fewer than its layers. Also for a module
    whose attention has several parts.
    """

    shares_modules: bool = False
    last: str = ""
    running: list[nn.Module] = field(default_factory=list)
    numbers: defaultdict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))

    def begin(self, model: nn.Module) -> None:
        """A model, or a part that is one, runs. Where it is running already, that run ended by an error."""
        self.end(model)
        self.running.append(model)
        self.taken.clear()
        self.last = ""

    def end(self, model: nn.Module) -> None:
        """It has run, and whatever ran in it."""
        if model in self.running:
            del self.running[self.running.index(model) :]

    @contextmanager
    def apart(self) -> Iterator[None]:
        """While it is open, other runs are numbered amid this one."""
        before = self.running, self.taken, self.last
        self.running, self.taken, self.last = [], defaultdict(set), ""
        try:
            yield
        finally:
            self.running, self.taken, self.last = before

    def layer(
        self, module: str, kind: str, attention: AttentionLayer | GivenWeights, stack: str | None = None
    ) -> CapturedLayer:
        numbers = self.numbers[module, kind]
        if self.running:
            if module == self.last and not self.shares_modules:
                raise CannotShow(f"{module} computes its attention in more than one part")
            self.last = module
            layer = super().layer(module, kind, attention, stack)
            numbers.add(layer.layer)
            return layer
        if len(numbers) > 1 or (self.shares_modules and not numbers):
            raise CannotShow(
                f"{module} is several layers, and by itself it may be any of them: run the model"
            )
        self.taken.clear()
        layer = super().layer(module, kind, attention, stack)
        return replace(layer, layer=next(iter(numbers), layer.layer))


class ProcessedInputs(dict[str, Tensor]):
    """What a model's forward takes that is no ids, and how many tokens that makes of text and context.

    Only layers of the module `part` see these tokens, all of them where it is empty; `origin` is where they
    lie.
    """

    def __init__(
        self,
        inputs: Mapping[str, Tensor],
        *,
        num_tokens: tuple[int, int],
        num_texts: int = 1,
        part: str = "",
        origin: Origin | None = None,
    ) -> None:
        super().__init__(inputs)
        self.num_tokens, self.num_texts, self.part, self.origin = num_tokens, num_texts, part, origin

    def copies(self, count: int) -> "ProcessedInputs":
        """The same that many times, as a batch."""
        several = {name: torch.cat([tensor] * count) for name, tensor in self.items()}
        num_texts = self.num_texts * count
        return ProcessedInputs(
            several, num_tokens=self.num_tokens, num_texts=num_texts, part=self.part, origin=self.origin
        )

    def numbering(self, *, has_two_stacks: bool) -> Numbering:
        """Names for the layers that see the tokens."""
        return Numbering(has_two_stacks, self.num_tokens, self.num_texts, self.part)


SHORT = 2**16
"""Weights of all heads up to which a layer waits: 12 heads on 73 tokens.

There the many small steps of its statistics take longer than its products, and several times as long amid
those of the model, whose parameters pass through the caches meanwhile.
"""


MOST_TOGETHER = TILE
"""Weights of the layers that are handed over together at most."""


class DeferredLayers:
    """Takes the layers before `consume`, which gets the short ones, in their order, from `finish`.

    Until then the model continues with fused attention. Only queries and keys of a waiting layer are kept.
    `consume` gets neighbours that are alike together: of the same stack and shape, who see the same keys.
    """

    def __init__(self, consume: Callable[[Sequence[CapturedLayer]], Tensor | None]) -> None:
        self.consume = consume
        self.waiting: list[CapturedLayer] = []
        self.fused = FusedAttention()

    def take(self, layer: CapturedLayer) -> Tensor | None:
        """The output of a layer, where attn computes it."""
        attention = layer.attention
        if isinstance(attention, AttentionLayer) and prod(attention.shape) <= SHORT:
            # The engines define the output of a query that sees no key.
            output = self.fused.output(attention) if attention.visibility.is_seeing else None
            if output is not None:
                # Copies: some models reuse the memory.
                query, key = attention.query.clone(), attention.key.clone()
                waiting = replace(attention, query=query, key=key, value=key[..., :0])
                self.waiting.append(replace(layer, attention=waiting))
                return output
        self.finish()
        return self.consume([layer])

    @torch.no_grad()
    def finish(self) -> None:
        """Hand over the waiting layers."""
        waiting, self.waiting = self.waiting, []
        for _, alike in groupby(waiting, _kind_of_layer):
            layers = list(alike)
            step = max(1, MOST_TOGETHER // max(1, prod(layers[0].attention.shape)))
            for start in range(0, len(layers), step):
                self.consume(layers[start : start + step])


def _kind_of_layer(layer: CapturedLayer) -> tuple[Any, ...]:
    attention = layer.attention
    assert isinstance(attention, AttentionLayer)
    tensors = (attention.query, attention.key)
    numbers = (*(tensor.shape for tensor in tensors), *(tensor.dtype for tensor in tensors), attention.scale)
    return layer.stack_name, layer.kind, id(attention.visibility), *numbers


ROWS = 256
MaskFunction = Callable[..., Any]
Rule = Callable[[Tensor, Tensor], Tensor]


class LazyMask(Tensor):
    """Who sees whom, in the form that transformers passes on: (text, 1, query, key), without memory.

    A model that computes with its mask gets an ordinary tensor: 0, and the smallest number of the dtype where
    a key is hidden.
    """

    visibility: Visibility

    @staticmethod
    def of(visibility: Visibility, num_texts: int, dtype: torch.dtype, device: Any) -> "LazyMask":
        """The mask of that many texts."""
        shape = num_texts, 1, visibility.num_queries, visibility.num_keys
        mask = torch.zeros((), dtype=dtype, device=device).expand(shape).as_subclass(LazyMask)
        mask.visibility = visibility
        return mask

    def numbers(self) -> Tensor:
        """0, and the smallest number of the dtype where a key is hidden."""
        with torch._C.DisableTorchFunctionSubclass():
            hidden = ~self.visibility.whole(self.device).unsqueeze(1)
            return torch.zeros(self.shape, dtype=self.dtype, device=self.device).masked_fill(
                hidden, torch.finfo(self.dtype).min
            )

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: Any = None
    ) -> Any:
        named = named or {}
        with torch._C.DisableTorchFunctionSubclass():
            if function in ABOUT_A_TENSOR:
                return function(*arguments, **named)
            plain = {name: _numbers_of(part) for name, part in named.items()}
            return function(*map(_numbers_of, arguments), **plain)


def _numbers_of(part: Any) -> Any:
    """What a function is given, with numbers in the place of masks, in lists of tensors, too."""
    if isinstance(part, LazyMask):
        return part.numbers()
    return type(part)(map(_numbers_of, part)) if type(part) in (list, tuple) else part


ABOUT_A_TENSOR = frozenset(
    {
        *(getattr(Tensor, name).__get__ for name in ("device", "dtype", "ndim", "requires_grad", "shape")),
        *(Tensor.dim, Tensor.is_floating_point, Tensor.size, Tensor.__len__),
    }
)
"""What is asked of a tensor without looking at its numbers."""


def seen_keys(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    **others: Any,
) -> LazyMask:
    """A mask in the form of transformers' AttentionMaskInterface; queries are the last of the keys.

    Raises CannotShow for a cache without the first keys, whose rows would differ.
    """
    visibility = visibility_of_mask(
        batch_size,
        q_length,
        kv_length,
        q_offset,
        kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        use_vmap=use_vmap,
        device=device,
    )
    return LazyMask.of(visibility, batch_size, dtype, device)


def visibility_of_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    *,
    mask_function: MaskFunction,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
) -> Visibility:
    """Which keys each query of a mask sees."""
    q_offset = int(q_offset)  # a static cache counts in tensors
    if kv_offset:
        raise CannotShow("its cache drops keys, which attn would have to count")
    key_mask = None if attention_mask is None or attention_mask.all() else attention_mask.bool()
    if key_mask is not None and key_mask.shape[1] < kv_length:  # a static cache has room for more
        key_mask = torch.nn.functional.pad(key_mask, (0, kv_length - key_mask.shape[1]))
    if use_vmap:
        mask = sdpa_mask(
            batch_size,
            q_length,
            kv_length,
            q_offset,
            mask_function=mask_function,
            allow_is_causal_skip=False,
            use_vmap=True,
            device=device,
        )
        assert mask is not None
        entries = mask[:, 0]
        return Visibility(
            q_length, kv_length, key_mask=key_mask, rule=lambda i, j: entries[:, i][:, :, j], offset=q_offset
        )
    texts = torch.arange(batch_size, device=device).view(-1, 1, 1)
    no_head = torch.zeros((), dtype=torch.long, device=device)

    def rule(queries: Tensor, keys: Tensor) -> Tensor:
        visible: Tensor = mask_function(texts, no_head, queries.unsqueeze(-1) + q_offset, keys)
        num_texts = len(visible) if visible.ndim == 3 else 1
        return visible.expand(num_texts, len(queries), len(keys))

    is_causal = mask_function is causal_mask_function and q_offset == kv_length - q_length
    known = (True, None) if is_causal else _recognised(mask_function, rule, q_length, kv_length, device)
    if known is None:
        return Visibility(q_length, kv_length, key_mask=key_mask, rule=rule, offset=q_offset)
    return Visibility(q_length, kv_length, *known, key_mask)


def _recognised(
    mask_function: MaskFunction, rule: Rule, num_queries: int, num_keys: int, device: torch.device | str
) -> tuple[bool, int | None] | None:
    """Whether a rule is causal and how wide its window is, where nothing else is in it: all entries agree."""
    if mask_function is bidirectional_mask_function:
        return False, None
    queries, keys = (torch.arange(count, device=device) for count in (num_queries, num_keys))
    first = num_keys - num_queries  # where the first query stands, if the rule is causal
    causal = num_keys > 1 and not rule(queries[:1], keys[first + 1 :]).any()
    width = int(rule(queries[-1:], keys)[0].sum())
    guess = Visibility(num_queries, num_keys, causal, width if width < num_keys else None)
    for block in torch.split(queries, ROWS):
        entries = rule(block, keys)
        if not torch.equal(guess.block(block, keys).expand_as(entries), entries):
            return None
    return guess.causal, guess.window


NAME = "attncli"
RECOMPUTED = (
    "a layer is computed again in the backward pass, where its heads might not be changed: switch gradient "
    "checkpointing off"
)


@dataclass(frozen=True)
class _Receiver:
    """Who gets the layers of the running model."""

    consume: Consumer
    running: NamedModel
    numbering: Numbering


_receivers = OpenItems[_Receiver]("receivers")


def _innermost(module: nn.Module | None = None) -> _Receiver | None:
    """The last that is open, of those whose model has the module; None without any."""
    receivers = [*_receivers]
    return next((each for each in receivers[::-1] if module is None or module in each.running.names), None)


def _attend_and_hand_over(
    module: nn.Module,
    query: Float[Tensor, "text head query dim"],
    key: Float[Tensor, "text kv_head key dim"],
    value: Float[Tensor, "text kv_head key value_dim"],
    attention_mask: Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Float[Tensor, " head"] | None = None,
    position_bias: Float[Tensor, "#text #head query key"] | None = None,
    **others: Any,
) -> tuple[Float[Tensor, "text query head value_dim"], Float[Tensor, "text head query key"] | None]:
    """An attention function as transformers wants it: the output, and the weights if they are asked for."""
    receiver = _innermost(module)
    if receiver is None and torch._C._current_graph_task_id() >= 0:
        raise CannotShow(RECOMPUTED)
    name = "another thread's run" if receiver is None else receiver.running.names[module]
    if others.get("dropout") and module.training:
        raise CannotShow(f"{name} drops out weights, at random: call eval(), or set its dropout to 0")
    for argument, given in others.items():
        if given is not None and argument not in ARGUMENTS_WITHOUT_EFFECT:
            raise CannotShow(f"{name} passes {argument} to its attention, which attn does not know")
    num_queries, num_keys = query.shape[2], key.shape[2]
    bias = position_bias
    if bias is not None and bool((bias <= HIDES).any()):  # a mask is in it
        attention_mask = bias if attention_mask is None else _numbers_of_mask(attention_mask) + bias
        bias = None
    if isinstance(attention_mask, LazyMask):
        visibility = attention_mask.visibility
    else:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        causal = bool(causal) and num_queries > 1 and attention_mask is None
        visibility = Visibility(num_queries, num_keys, causal=causal)
        if attention_mask is not None:
            visibility, added = split_mask(attention_mask, num_queries, num_keys)
            bias = added if bias is None or added is None else bias + added
    layer = AttentionLayer(
        query,
        key,
        value,
        visibility,
        query.shape[-1] ** -0.5 if scaling is None else scaling,
        ScoreRules(softcap=softcap, bias=bias, sink=None if s_aux is None else s_aux.unsqueeze(0)),
    )
    running, output = RunningLayer(name, "", 0, layer), None
    # Of a run that another thread began beside that of this one nothing is handed over.
    if receiver is not None and name.startswith(receiver.numbering.part):
        running, output = _handed_over(receiver, module, name, layer)
    if output is None:
        output = attention_output(layer)
    # Half precision is computed in float32; the model continues in its dtype.
    weights = running.weights.to(query.dtype) if others.get("output_attentions") else None
    return output.transpose(1, 2).to(query.dtype).contiguous(), weights


def _handed_over(
    receiver: _Receiver, module: nn.Module, name: str, attention: AttentionLayer
) -> tuple[RunningLayer, Float[Tensor, "text head query value_dim"] | None]:
    """A layer as its heads were changed, and its output where the consumer or a change computes it."""
    layer = receiver.numbering.layer(name, layer_kind(name), attention)
    running = RunningLayer(name, layer.stack_name, layer.layer, attention)
    patched = patched_layer(module, running, receiver.running)
    if patched is None:
        return running, receiver.consume(layer)
    return running, patched.finished(receiver.consume(replace(layer, attention=patched.attention)))


def _numbers_of_mask(mask: Tensor) -> Tensor:
    """A mask as numbers to add."""
    if isinstance(mask, LazyMask):
        return mask.numbers()
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, HIDDEN_BY_A_HEAD)


AttentionInterface.register(NAME, _attend_and_hand_over)
AttentionMaskInterface.register(NAME, seen_keys)


def run_by_interface(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], consume: Consumer, numbering: Numbering
) -> ModelOutput | tuple[Any, ...]:
    """The model's outputs, in a few models without names (DPR); each layer goes to `consume`.

    Raises CannotShow for arguments that attn does not know, and for queries and keys that are not the tokens.
    """
    with handing_over(model, consume, numbering):
        outputs: ModelOutput | tuple[Any, ...] = model(**inputs)
    return outputs


_uncompiled = SharedChange(
    lambda: partial(torch.compiler.set_stance("force_eager").__exit__, None, None, None), lambda: None
)


def uncompiled() -> AbstractContextManager[None]:
    """While it is open, what a user has compiled runs as it was written.

    Compiled it would not call the attention function.
    """
    return _uncompiled.made()


@contextmanager
def handing_over(
    model: PreTrainedModel, consume: Consumer, numbering: Numbering
) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """While it is open, each layer of the model goes to `consume`, whatever runs the model.

    Gives what hands over to `consume` again, while another run of the model is handed over elsewhere.
    """
    model.set_attn_implementation(NAME)
    running = NamedModel(model, {module: name for name, module in model.named_modules()})
    receiver = _Receiver(consume, running, numbering)
    try:
        with _receivers.opened(receiver), uncompiled():
            yield partial(_receivers.opened, receiver)
    finally:
        running.end()


def layers_so_far() -> frozenset[tuple[str, str, int]]:
    """The layers that the model ran so far in this run: stack, kind and number."""
    receiver = _innermost()
    taken = {} if receiver is None else receiver.numbering.taken
    return frozenset((*place, number) for place, numbers in taken.items() for number in numbers)


def count_as_run(layers: Iterable[tuple[str, str, int]]) -> None:
    """These layers, which this run leaves out, come before the others: a module may serve as several."""
    receiver = _innermost()
    if receiver is not None:
        for stack, kind, number in layers:
            receiver.numbering.taken[stack, kind].add(number)
