"""Functions that record the attention in any PyTorch program: `record` and, for one call, `layers_of`."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from html import escape
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attncli.core.engines import attend
from attncli.core.layer import AttentionLayer, Wanted
from attncli.core.row_tiles import GivenWeights
from attncli.errors import UserError
from attncli.features.record.listening.heard_calls import HeardCall
from attncli.features.record.listening.heard_layers import program_mask, with_copied_mask
from attncli.features.record.listening.listener import Listener
from attncli.features.record.listening.torch_calls import reading
from attncli.features.record.recorder import Recorder
from attncli.features.record.results import RecordedHeads, RecordedModule
from attncli.records.arguments import Count, Size, by, checked, listed, shown
from attncli.records.columns import Records
from attncli.records.surveys import SurveyedHead

if TYPE_CHECKING:
    from attncli.notebook.run import NotebookReport

MOST_COPIED = 2**27
"""Maximum number of bytes of queries, keys and values that a recording copies."""


def _calls(value: Any) -> Any:
    if value in ("all", "last") or (type(value) is int and value > 0):
        return value
    raise ValueError(f"must be a number of calls, all, or last (got {shown(value)})")


def _tokens(value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else listed(value)
    if not all(isinstance(name, str) for name in names):
        raise ValueError("must be a list with one string per token")
    return names


def _head_numbers(value: Any) -> Any:
    is_mapping = isinstance(value, Mapping)
    if not is_mapping or not all(isinstance(k, str) and type(n) is int and n > 0 for k, n in value.items()):
        raise ValueError('must map module paths to numbers of heads, such as {"layers.*.attn": 8}')
    return value


def _pattern(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be a path pattern, such as '*.self_attn' (got {shown(value)})")
    return value


CallsHeard = Annotated[int | Literal["all", "last"], by(_calls)]
TokensOfText = Annotated[list[str], by(_tokens)]
PathPattern = Annotated[str, by(_pattern)]
NumbersOfHeads = Annotated[Mapping[str, int], by(_head_numbers)]


@dataclass(frozen=True)
class RecordedLayer:
    """A copy of one attention computation in a program, which attn's functions accept.

    `module` is the path of the module, `call` is the number of the module's call, `kind` is self or cross,
    and `function` is the function that computed the attention. `attention` is an AttentionLayer or, if query
    and key are not known, GivenWeights; in that case, `query`, `key`, `value` and `scale` are None.
    """

    module: str
    call: int
    kind: str
    function: str
    attention: AttentionLayer | GivenWeights

    def __repr__(self) -> str:
        sizes = " x ".join(map(str, self.attention.shape))
        return f"<RecordedLayer {self.module}, call {self.call}: {self.kind}, {sizes}, {self.function}>"

    @property
    def query(self) -> Float[Tensor, "text head query dim"] | None:
        """The queries of each head."""
        return self.attention.query if isinstance(self.attention, AttentionLayer) else None

    @property
    def key(self) -> Float[Tensor, "text kv_head key dim"] | None:
        """The keys of each key/value head."""
        return self.attention.key if isinstance(self.attention, AttentionLayer) else None

    @property
    def value(self) -> Float[Tensor, "text kv_head key value_dim"] | None:
        """The values of each key/value head."""
        return self.attention.value if isinstance(self.attention, AttentionLayer) else None

    @property
    def scale(self) -> float | None:
        """The factor by which query · key is multiplied."""
        return self.attention.scale if isinstance(self.attention, AttentionLayer) else None

    @property
    def mask(self) -> Bool[Tensor, "#text query key"]:
        """True where a query may see a key."""
        if isinstance(self.attention, AttentionLayer):
            return self.attention.visibility.whole(self.attention.query.device)
        return self.attention.seen

    def weights(self) -> Float[Tensor, "text head query key"]:
        """p = softmax(scores) over the keys that each query sees; hidden keys have weight 0."""
        weights = attend(self.attention, Wanted(weights=True)).weights
        assert weights is not None
        return weights


def _copied(call: HeardCall) -> RecordedLayer:
    attention = call.attention
    with torch.inference_mode(mode=False):  # copies made in inference mode cannot be used outside of it
        if isinstance(attention, AttentionLayer):
            parts = {name: getattr(attention, name).clone() for name in ("query", "key", "value")}
            attention = with_copied_mask(replace(attention, **parts))
        else:
            attention = GivenWeights(attention.weights.clone(), attention.seen.clone())
    return RecordedLayer(call.module, call.call, call.kind, call.function, attention)


def _num_bytes(call: HeardCall | RecordedLayer) -> int:
    attention = call.attention
    if isinstance(attention, GivenWeights):
        return attention.weights.nbytes
    mask = program_mask(attention)
    mask_bytes = 0 if mask is None else mask.nbytes
    return mask_bytes + attention.query.nbytes + attention.key.nbytes + attention.value.nbytes


class Recording:
    """A recording made by `with record() as seen:`. It can be read before and after the block ends."""

    def __init__(
        self, recorder: Recorder, listen: Mapping[str, Any], most_copied: float = MOST_COPIED
    ) -> None:
        self._recorder, self._most_copied = recorder, most_copied
        self._listener = Listener(self._take, **listen)
        self._layers: dict[tuple[str, int], RecordedLayer] = {}
        self._not_copied: dict[str, None] = {}
        self._num_copied = 0
        self._opened = ExitStack()

    def __enter__(self) -> "Recording":
        self._opened.enter_context(self._listener.listening())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._opened.close()

    def _take(self, call: HeardCall) -> None:
        if self._listener.calls == "last":
            for place in [place for place in self._layers if place[0] == call.module]:
                self._num_copied -= _num_bytes(self._layers.pop(place))
            self._not_copied.pop(call.module, None)
        if self._num_copied + _num_bytes(call) <= self._most_copied:
            self._num_copied += _num_bytes(call)
            self._layers[call.module, call.call] = _copied(call)
        else:
            self._not_copied[call.module] = None
        self._recorder.take(call)

    @property
    def layers(self) -> list[RecordedLayer]:
        """The query, key, value, mask and scale of each recorded attention, in the order of the calls.

        Raises UserError if copies of all layers would exceed 128 MB.
        """
        if self._not_copied:
            names = ", ".join([*self._not_copied][:3])
            raise UserError(
                f"layers: copies of all layers would exceed {MOST_COPIED / 1e6:.0f} MB "
                f"(not copied: {names}): record fewer modules with `modules`, or call layers_of"
            )
        return [*self._layers.values()]

    @property
    def heads(self) -> Records[SurveyedHead]:
        """The head statistics: one row per head, with the path of its module."""
        return self.survey().heads

    @property
    def modules(self) -> Records[RecordedModule]:
        """The modules that use attention: one row per module, with its number of calls."""
        return self.survey().modules

    @property
    def notes(self) -> list[str]:
        """Notes on everything that was changed, missed or left out."""
        return [*self.survey().notes] if self._recorder.has_heard else self._listener.notes()

    def survey(self) -> RecordedHeads:
        """Return the survey of the heads and the modules. Raises UserError if no attention was detected."""
        if not self._recorder.has_heard:
            missed = " ".join(self.notes)
            raise UserError(
                "no attention was detected: the program called none of torch's functions "
                "(scaled_dot_product_attention, multi_head_attention_forward, flex_attention), and "
                "multiplied no result of a softmax by values" + (f". {missed}" if missed else "")
            )
        with reading():
            listener = self._listener
            return self._recorder.result(listener.counts, listener.notes(), listener.training_steps)

    def report(self) -> "NotebookReport":
        """Return the report of `attn record`.

        The report displays itself in a notebook; `to_html()` returns its page.
        """
        from attncli.features.record.reports import recording_report
        from attncli.notebook.run import NotebookReport

        survey = self.survey()
        with reading():
            return NotebookReport.of(recording_report(self._recorder, survey))

    def __repr__(self) -> str:
        if not self._recorder.has_heard:
            return "<Recording: no attention detected yet>"
        return f"<Recording: {len(self.modules)} modules, {len(self.heads)} heads>"

    def _repr_html_(self) -> str:
        return self.report()._repr_html_() if self._recorder.has_heard else f"<p>{escape(repr(self))}</p>"


@checked
def record(
    *,
    tokens: TokensOfText | None = None,
    calls: CallsHeard = 1,
    modules: PathPattern | None = None,
    heads: NumbersOfHeads | None = None,
    grid: tuple[Size, Size] | None = None,
    whole_tokens: Count = 256,
) -> Recording:
    """Record the attention of everything that runs in this thread: `with record() as seen: model(x)`.

    Detects torch's attention functions, and a softmax over the last axis whose result is multiplied by
    values.

    - `tokens`: names of the tokens of self-attention. `grid`: (rows, columns) of patches.
    - `calls`: how many of the first calls of each module to record, or "all", or "last".
    - `modules`: record only modules whose paths match the pattern, such as `*.self_attn`.
    - `heads`: the number of heads for each such pattern, for programs that merge texts and heads into one
      axis.
    - `whole_tokens`: store the weights of texts with at most this many tokens.

    The program's results stay bit-for-bit identical, but compiled code runs uncompiled.
    """
    recorder = Recorder(tokens=tokens, grid=grid, whole_tokens=whole_tokens, calls=calls)
    return Recording(recorder, {"calls": calls, "modules": modules, "heads": heads})


def layers_of(program: nn.Module | Any, *inputs: Any, **named: Any) -> list[RecordedLayer]:
    """Return the query, key, value, mask and scale of each attention in one call: `layers_of(model, x)`.

    All tensors are copies. Raises UserError if no attention was detected.
    """
    if not callable(program):
        raise UserError(f"program: must be a module or a function (got {shown(program)})")
    heard: list[RecordedLayer] = []
    listener = Listener(lambda call: heard.append(_copied(call)), calls="all")
    with listener.listening():
        program(*inputs, **named)
    if not heard:
        raise UserError("program: no attention was detected in this call", *listener.notes())
    return heard
