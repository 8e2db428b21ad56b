"""Layers captured one at a time from a running model, through transformers' attention interface."""

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
    """The attention of a model cannot be shown. The message names the module and the reason."""


class StopCapture(Exception):
    """Raised by a consumer that needs no more layers."""


@dataclass(frozen=True, repr=False)
class CapturedLayer:
    """One call of an attention module: its attention, or only its weights if the model returns nothing else.

    `module` is the module's qualified name in the model, and `kind` is self or cross. `stack` is encoder or
    decoder if the model has both, and empty otherwise. `layer` is the number within a stack and kind.
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
        """The name of the layer's stack: encoder, decoder or cross, or self in a model with one stack."""
        return self.kind if self.kind == "cross" or not self.stack else self.stack

    def weights(self) -> Float[Tensor, "text head query key"]:
        """p = softmax(scores) over the keys that each query sees, and 0 on all other keys."""
        weights = attend(self.attention, Wanted(weights=True)).weights
        assert weights is not None
        return weights

    def copied(self) -> "CapturedLayer":
        """Return a copy of the layer, since some models reuse the memory."""
        attention = self.attention
        if not isinstance(attention, AttentionLayer):
            return self
        query, key, value = attention.query.clone(), attention.key.clone(), attention.value.clone()
        return replace(self, attention=replace(attention, query=query, key=key, value=value))


Consumer = Callable[[CapturedLayer], Float[Tensor, "text head query value_dim"] | None]
"""A function that receives a layer and returns its output, or None if it did not compute the output."""


@dataclass
class Numbering:
    """The names of the layers of one run of a model, given in the order of their calls.

    A layer has the number in its module's name; if one module serves several layers (ALBERT), each call
    counts as a layer and gets the next number. Raises CannotShow unless queries and keys are the `num_tokens`
    of the text and of its context (by default the text itself), and there are `num_texts` texts; attention
    within windows of a grid fails this check. Only layers of the module `part` are named.
    """

    has_two_stacks: bool
    num_tokens: tuple[int, int] | None
    num_texts: int | None = None
    part: str = ""
    taken: defaultdict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))

    def layer(
        self, module: str, kind: str, attention: AttentionLayer | GivenWeights, stack: str | None = None
    ) -> CapturedLayer:
        """Return the layer of this module call; without a `stack`, the module's name determines the stack."""
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
                f"{module} has {got[0]} queries and {got[1]} keys, but the texts have {queries} and {keys} "
                "tokens"
            )


@dataclass
class RunsNumbering(Numbering):
    """The names of the layers in a caller's runs of a model and of its parts, which may run on their own.

    Layers are numbered from the start in each run of a model; `running` holds the current runs, the outermost
    first. A layer outside a run, or recomputed in a backward pass, has the number that its module had in a
    run, or else the number in its name. Raises CannotShow for a module that serves several layers
    (`shares_modules` means that the model has fewer modules than layers), and for a module whose attention
    has several parts.
    """

    shares_modules: bool = False
    last: str = ""
    running: list[nn.Module] = field(default_factory=list)
    numbers: defaultdict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))

    def begin(self, model: nn.Module) -> None:
        """Begin a run of a model, or of a part that is itself a model.

        Earlier runs that have not ended count as failed.
        """
        self.end(model)
        self.running.append(model)
        self.taken.clear()
        self.last = ""

    def end(self, model: nn.Module) -> None:
        """End the run of a model, and all runs inside it."""
        if model in self.running:
            del self.running[self.running.index(model) :]

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Number other runs separately inside the block."""
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
                f"{module} serves several layers, so its layer number is unknown: run the whole model"
            )
        self.taken.clear()
        layer = super().layer(module, kind, attention, stack)
        return replace(layer, layer=next(iter(numbers), layer.layer))


class ProcessedInputs(dict[str, Tensor]):
    """Inputs of a model's forward other than ids, and how many tokens these make in text and context.

    Only layers of the module `part` see these tokens, or all layers if `part` is empty; `origin` holds the
    places of the tokens.
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
        """Return a batch of `count` copies."""
        several = {name: torch.cat([tensor] * count) for name, tensor in self.items()}
        num_texts = self.num_texts * count
        return ProcessedInputs(
            several, num_tokens=self.num_tokens, num_texts=num_texts, part=self.part, origin=self.origin
        )

    def numbering(self, *, has_two_stacks: bool) -> Numbering:
        """Return a numbering of the layers that see the tokens."""
        return Numbering(has_two_stacks, self.num_tokens, self.num_texts, self.part)


SHORT = 2**16
"""The largest number of weights, over all heads, with which a layer waits: 12 heads on 73 tokens.

The many small steps of such a layer's statistics take longer than its products, and several times as long
between the steps of the model, whose parameters displace them from the caches.
"""


MOST_TOGETHER = TILE
"""The most weights in layers that are passed on together."""


class DeferredLayers:
    """Keeps short layers until `finish` passes them to `consume`, in order.

    Meanwhile, the model continues with fused attention, and only the queries and keys of a waiting layer are
    stored. `consume` receives similar neighbours together: layers of the same stack and shape whose queries
    see the same keys.
    """

    def __init__(self, consume: Callable[[Sequence[CapturedLayer]], Tensor | None]) -> None:
        self.consume = consume
        self.waiting: list[CapturedLayer] = []
        self.fused = FusedAttention()

    def take(self, layer: CapturedLayer) -> Tensor | None:
        """Return the output of a layer, or None if attn does not compute it."""
        attention = layer.attention
        if isinstance(attention, AttentionLayer) and prod(attention.shape) <= SHORT:
            # For a query that sees no key, the output depends on the engine that computes it.
            output = self.fused.output(attention) if attention.visibility.is_seeing else None
            if output is not None:
                # Copies, because some models reuse the memory.
                query, key = attention.query.clone(), attention.key.clone()
                waiting = replace(attention, query=query, key=key, value=key[..., :0])
                self.waiting.append(replace(layer, attention=waiting))
                return output
        self.finish()
        return self.consume([layer])

    @torch.no_grad()
    def finish(self) -> None:
        """Pass the waiting layers on."""
        waiting, self.waiting = self.waiting, []
        for _, alike in groupby(waiting, _layer_traits):
            layers = list(alike)
            step = max(1, MOST_TOGETHER // max(1, prod(layers[0].attention.shape)))
            for start in range(0, len(layers), step):
                self.consume(layers[start : start + step])


def _layer_traits(layer: CapturedLayer) -> tuple[Any, ...]:
    attention = layer.attention
    assert isinstance(attention, AttentionLayer)
    tensors = (attention.query, attention.key)
    numbers = (*(tensor.shape for tensor in tensors), *(tensor.dtype for tensor in tensors), attention.scale)
    return layer.stack_name, layer.kind, id(attention.visibility), *numbers


ROWS = 256
MaskFunction = Callable[..., Any]
Rule = Callable[[Tensor, Tensor], Tensor]


class LazyMask(Tensor):
    """A visibility in the form that transformers passes on, (text, 1, query, key), without taking memory.

    A model that computes with its mask gets an ordinary tensor: 0 where a key is visible, and the smallest
    number of the dtype where a key is hidden.
    """

    visibility: Visibility

    @staticmethod
    def of(visibility: Visibility, num_texts: int, dtype: torch.dtype, device: Any) -> "LazyMask":
        """Return a mask for that number of texts."""
        shape = num_texts, 1, visibility.num_queries, visibility.num_keys
        mask = torch.zeros((), dtype=dtype, device=device).expand(shape).as_subclass(LazyMask)
        mask.visibility = visibility
        return mask

    def numbers(self) -> Tensor:
        """Return 0 for visible keys, and the smallest number of the dtype for hidden ones."""
        with torch._C.DisableTorchFunctionSubclass():
            hidden = ~self.visibility.whole(self.device).unsqueeze(1)
            return torch.zeros(self.shape, dtype=self.dtype, device=self.device).masked_fill(
                hidden, torch.finfo(self.dtype).min
            )

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: Any = None
    ) -> Any:
        keywords = keywords or {}
        with torch._C.DisableTorchFunctionSubclass():
            if function in ABOUT_A_TENSOR:
                return function(*arguments, **keywords)
            plain = {name: _with_numbers(part) for name, part in keywords.items()}
            return function(*map(_with_numbers, arguments), **plain)


def _with_numbers(part: Any) -> Any:
    """Return a function's argument with masks replaced by numbers, also inside lists and tuples."""
    if isinstance(part, LazyMask):
        return part.numbers()
    return type(part)(map(_with_numbers, part)) if type(part) in (list, tuple) else part


ABOUT_A_TENSOR = frozenset(
    {
        *(getattr(Tensor, name).__get__ for name in ("device", "dtype", "ndim", "requires_grad", "shape")),
        *(Tensor.dim, Tensor.is_floating_point, Tensor.size, Tensor.__len__),
    }
)
"""Tensor attributes and methods that do not read the tensor's numbers."""


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
    """Return a mask in the form of transformers' AttentionMaskInterface; the queries are the last keys.

    Raises CannotShow for a cache without the first keys, whose rows would be different.
    """
    visibility = mask_visibility(
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


def mask_visibility(
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
    """Return the visibility of the keys in an attention mask."""
    q_offset = int(q_offset)  # a tensor in a static cache
    if kv_offset:
        raise CannotShow("its cache drops keys that attn needs")
    key_mask = None if attention_mask is None or attention_mask.all() else attention_mask.bool()
    if key_mask is not None and key_mask.shape[1] < kv_length:  # a static cache has room for more keys
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
    rules = (True, None) if is_causal else _recognised(mask_function, rule, q_length, kv_length, device)
    if rules is None:
        return Visibility(q_length, kv_length, key_mask=key_mask, rule=rule, offset=q_offset)
    return Visibility(q_length, kv_length, *rules, key_mask)


def _recognised(
    mask_function: MaskFunction, rule: Rule, num_queries: int, num_keys: int, device: torch.device | str
) -> tuple[bool, int | None] | None:
    """Return a rule's causality and window, or None if these do not explain every entry."""
    if mask_function is bidirectional_mask_function:
        return False, None
    queries, keys = (torch.arange(count, device=device) for count in (num_queries, num_keys))
    first = num_keys - num_queries  # the position of the first query, if the rule is causal
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
    "a layer is recomputed in the backward pass, where changes to its heads may not apply: turn off gradient "
    "checkpointing"
)


@dataclass(frozen=True)
class _Receiver:
    """The consumer of a running model's layers."""

    consume: Consumer
    running: NamedModel
    numbering: Numbering


_receivers = OpenItems[_Receiver]("receivers")


def _innermost(module: nn.Module | None = None) -> _Receiver | None:
    """Return the innermost open receiver whose model has the module, or None if there is none."""
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
    """Attention function for transformers: return the output and, if requested, the weights."""
    receiver = _innermost(module)
    if receiver is None and torch._C._current_graph_task_id() >= 0:
        raise CannotShow(RECOMPUTED)
    name = "another thread's run" if receiver is None else receiver.running.names[module]
    if others.get("dropout") and module.training:
        raise CannotShow(f"{name} applies dropout to its weights: call eval(), or set its dropout to 0")
    for argument, value_passed in others.items():
        if value_passed is not None and argument not in ARGUMENTS_WITHOUT_EFFECT:
            raise CannotShow(f"{name} passes {argument} to its attention, which attn does not support")
    num_queries, num_keys = query.shape[2], key.shape[2]
    bias = position_bias
    if bias is not None and bool((bias <= HIDES).any()):  # the bias contains a mask
        attention_mask = bias if attention_mask is None else _mask_numbers(attention_mask) + bias
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
    # Layers of a run in another thread are not passed on.
    if receiver is not None and name.startswith(receiver.numbering.part):
        running, output = _handed_over(receiver, module, name, layer)
    if output is None:
        output = attention_output(layer)
    # Half precision is computed in float32, and the model continues in its own dtype.
    weights = running.weights.to(query.dtype) if others.get("output_attentions") else None
    return output.transpose(1, 2).to(query.dtype).contiguous(), weights


def _handed_over(
    receiver: _Receiver, module: nn.Module, name: str, attention: AttentionLayer
) -> tuple[RunningLayer, Float[Tensor, "text head query value_dim"] | None]:
    """Return a layer with its heads changed, and its output if the consumer or a change computes it."""
    layer = receiver.numbering.layer(name, layer_kind(name), attention)
    running = RunningLayer(name, layer.stack_name, layer.layer, attention)
    patched = patched_layer(module, running, receiver.running)
    if patched is None:
        return running, receiver.consume(layer)
    return running, patched.finished(receiver.consume(replace(layer, attention=patched.attention)))


def _mask_numbers(mask: Tensor) -> Tensor:
    """Return a mask as numbers to add to the scores."""
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
    """Return the model's outputs while `consume` receives each layer.

    In a few models (DPR), the outputs have no names.

    Raises CannotShow for arguments that attn does not support, and unless queries and keys are the tokens.
    """
    with handing_over(model, consume, numbering):
        outputs: ModelOutput | tuple[Any, ...] = model(**inputs)
    return outputs


_uncompiled = SharedChange(
    lambda: partial(torch.compiler.set_stance("force_eager").__exit__, None, None, None), lambda: None
)


def uncompiled() -> AbstractContextManager[None]:
    """Turn off torch.compile inside the block, since compiled code would not call the attention function."""
    return _uncompiled.made()


@contextmanager
def handing_over(
    model: PreTrainedModel, consume: Consumer, numbering: Numbering
) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Inside the block, pass each layer of the model to `consume`, whatever code runs the model.

    Yields a context manager that passes layers to `consume` again inside a nested block of `handing_over`.
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
    """Return the layers that the model has computed so far in this run, as stack, kind and number."""
    receiver = _innermost()
    taken = {} if receiver is None else receiver.numbering.taken
    return frozenset((*place, number) for place, numbers in taken.items() for number in numbers)


def count_as_run(layers: Iterable[tuple[str, str, int]]) -> None:
    """Count these skipped layers before the others, since one module may serve as several layers."""
    receiver = _innermost()
    if receiver is not None:
        for stack, kind, number in layers:
            receiver.numbering.taken[stack, kind].add(number)
