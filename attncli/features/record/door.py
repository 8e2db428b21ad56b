"""The attention of any PyTorch program, from Python: `record` while it runs, `layers_of` of one call."""

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

MOST_KEPT = 2**27
"""Bytes of query, key and value that a recording copies at most."""


def _calls(value: Any) -> Any:
    if value in ("all", "last") or (type(value) is int and value > 0):
        return value
    raise ValueError(f"must be a number of calls, all or last (got {shown(value)})")


def _tokens(value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else listed(value)
    if not all(isinstance(name, str) for name in names):
        raise ValueError("must be texts, one for each token")
    return names


def _numbers_of_heads(value: Any) -> Any:
    is_mapping = isinstance(value, Mapping)
    if not is_mapping or not all(isinstance(k, str) and type(n) is int and n > 0 for k, n in value.items()):
        raise ValueError('must be numbers of heads by the paths of modules, as {"layers.*.attn": 8}')
    return value


def _pattern(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be a pattern of paths, as '*.self_attn' (got {shown(value)})")
    return value


CallsHeard = Annotated[int | Literal["all", "last"], by(_calls)]
TokensOfText = Annotated[list[str], by(_tokens)]
PathPattern = Annotated[str, by(_pattern)]
NumbersOfHeads = Annotated[Mapping[str, int], by(_numbers_of_heads)]


@dataclass(frozen=True)
class RecordedLayer:
    """One attention of a program, copied: what attn's functions take.

    `module` is the path of its module, `call` which call of it, `kind` self or cross, `function` how it was
    heard. `attention` is an AttentionLayer, or the weights alone (GivenWeights) where query and key are not
    known; then `query`, `key`, `value` and `scale` are None.
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
        """The factor on query . key."""
        return self.attention.scale if isinstance(self.attention, AttentionLayer) else None

    @property
    def mask(self) -> Bool[Tensor, "#text query key"]:
        """True where a query may see a key."""
        if isinstance(self.attention, AttentionLayer):
            return self.attention.visibility.whole(self.attention.query.device)
        return self.attention.seen

    def weights(self) -> Float[Tensor, "text head query key"]:
        """p = softmax(scores) over the keys that each query sees; 0 on the others."""
        weights = attend(self.attention, Wanted(weights=True)).weights
        assert weights is not None
        return weights


def _copied(call: HeardCall) -> RecordedLayer:
    attention = call.attention
    with torch.inference_mode(mode=False):  # a copy made in it could not be used outside
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
    of_mask = 0 if mask is None else mask.nbytes
    return of_mask + attention.query.nbytes + attention.key.nbytes + attention.value.nbytes


class Recording:
    """What was heard of a program while `with record() as seen:` was open; it can be looked at meanwhile."""

    def __init__(self, recorder: Recorder, listen: Mapping[str, Any], most_kept: float = MOST_KEPT) -> None:
        self._recorder, self._most_kept = recorder, most_kept
        self._listener = Listener(self._take, **listen)
        self._layers: dict[tuple[str, int], RecordedLayer] = {}
        self._not_kept: dict[str, None] = {}
        self._num_kept = 0
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
                self._num_kept -= _num_bytes(self._layers.pop(place))
            self._not_kept.pop(call.module, None)
        if self._num_kept + _num_bytes(call) <= self._most_kept:
            self._num_kept += _num_bytes(call)
            self._layers[call.module, call.call] = _copied(call)
        else:
            self._not_kept[call.module] = None
        self._recorder.take(call)

    @property
    def layers(self) -> list[RecordedLayer]:
        """Query, key, value, mask and scale of each attention that was recorded, in the order of the calls.

        UserError where some are not there, since copies of all would take more than 128 MB.
        """
        if self._not_kept:
            names = ", ".join([*self._not_kept][:3])
            raise UserError(
                f"layers: those of {names} were not copied, beyond {MOST_KEPT / 1e6:.0f} MB in all: record "
                "fewer modules with `modules`, or call layers_of"
            )
        return [*self._layers.values()]

    @property
    def heads(self) -> Records[SurveyedHead]:
        """What each head does: a row a head, with the path of its module."""
        return self.survey().heads

    @property
    def modules(self) -> Records[RecordedModule]:
        """What was heard: a row a module, with how often it was called."""
        return self.survey().modules

    @property
    def notes(self) -> list[str]:
        """What was changed, missed or left out meanwhile, a line each."""
        return [*self.survey().notes] if self._recorder.has_heard else self._listener.notes()

    def survey(self) -> RecordedHeads:
        """What each head does, and the modules that were heard. UserError where no attention was."""
        if not self._recorder.has_heard:
            missed = " ".join(self.notes)
            raise UserError(
                "no attention was heard: neither torch's own functions (scaled_dot_product_attention, "
                "multi_head_attention_forward, flex_attention) nor a softmax whose result reaches a product"
                + (f". {missed}" if missed else "")
            )
        with reading():
            listener = self._listener
            return self._recorder.result(listener.counts, listener.notes(), listener.training_steps)

    def report(self) -> "NotebookReport":
        """The report that `attn record` gives: it shows itself in a notebook, and `to_html()` is its page."""
        from attncli.features.record.reports import report_of
        from attncli.notebook.run import NotebookReport

        survey = self.survey()
        with reading():
            return NotebookReport.of(report_of(self._recorder, survey))

    def __repr__(self) -> str:
        if not self._recorder.has_heard:
            return "<Recording: no attention heard yet>"
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
    """Listen to the attention of whatever runs in this thread: `with record() as seen: model(x)`.

    Heard are torch's attention functions, and a softmax over the last axis whose result reaches a product.
    `tokens` names the tokens of self-attention, `grid` is (rows, columns) of patches. The first `calls` of
    each module are recorded, or all, or the last; of those whose path fits `modules`, as `*.self_attn`.
    `heads` says how many there are by such a pattern, where texts and heads are one axis. Weights are kept
    up to `whole_tokens` tokens.

    The program computes what it computes otherwise, to the bit, but for compiled code, which runs as it is
    written.
    """
    recorder = Recorder(tokens=tokens, grid=grid, whole_tokens=whole_tokens, calls=calls)
    return Recording(recorder, {"calls": calls, "modules": modules, "heads": heads})


def layers_of(program: nn.Module | Any, *inputs: Any, **named: Any) -> list[RecordedLayer]:
    """The attention of one call, `layers_of(model, x)`: query, key, value, mask and scale of each layer.

    Everything is copied. UserError where no attention was heard.
    """
    if not callable(program):
        raise UserError(f"program: must be a module or a function (got {shown(program)})")
    heard: list[RecordedLayer] = []
    listener = Listener(lambda call: heard.append(_copied(call)), calls="all")
    with listener.listening():
        program(*inputs, **named)
    if not heard:
        raise UserError("program: no attention was heard in this call", *listener.notes())
    return heard
