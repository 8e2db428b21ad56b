"""Capture layers whose state is a matrix, from the arguments of their kernels while a model runs.

transformers calls these kernels by name in each architecture's module. During capture, the kernels are
replaced by wrappers that call the kernels and record their arguments. Lightning attention calls no kernel, so
its heads are computed from its parameters.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial, wraps
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from attncli.core.process import SharedChange
from attncli.features.linear.channel_layer import ChannelLayer
from attncli.features.linear.linear_layer import Inputs, LinearLayer, State, ValueChannels
from attncli.models.layer_sources import CapturedMixer, Mixer, MixerConsumer

AnyLinearLayer = LinearLayer | ChannelLayer
Arguments = Mapping[str, Any]


def _floats(**tensors: Tensor) -> dict[str, Tensor]:
    """Return the tensors in float32, because kernels return results in the precision of their inputs."""
    return {name: tensor.float() for name, tensor in tensors.items()}


def _delta_rule(kernel: Callable[..., Any], arguments: Arguments) -> LinearLayer:
    """Read gated delta nets (Yang et al. 2024, 2412.06464) and Kimi delta attention (2510.26692).

    The decay of Kimi delta attention has channels. The input is a whole text, or one more token.
    """
    is_normed = arguments["use_qk_l2norm_in_kernel"]
    inputs = _floats(query=arguments["query"], key=arguments["key"], g=arguments["g"], beta=arguments["beta"])
    dim, decay = inputs["key"].shape[-1], inputs["g"]

    def run(
        inputs: Inputs, fixed: Inputs, values: ValueChannels, state: State | None
    ) -> tuple[ValueChannels, State]:
        if state is None:
            heads = values.shape[2]
            state = values.new_zeros(len(values), heads, dim, values.shape[-1])
        output, after = kernel(
            inputs["query"],
            inputs["key"],
            values,
            g=inputs["g"],
            beta=inputs["beta"],
            initial_state=state,
            output_final_state=True,
            use_qk_l2norm_in_kernel=is_normed,
        )
        return output, after

    has_channels = decay.ndim == 4
    return LinearLayer(
        arguments["value"].float(),
        inputs,
        {},
        run,
        dim,
        decay.mean(dim=-1) if has_channels else decay,
        work_dim=KIMI_CHUNK * dim if has_channels else 0,
    )


KIMI_CHUNK = 64
"""The number of tokens per chunk of Kimi's kernel, which stores each channel's decay between any two."""


def _mamba2(kernel: Callable[..., Any], arguments: Arguments) -> LinearLayer:
    """Read Mamba-2 (Dao & Gu 2024, 2405.21060); the skip connection D x is on the diagonal."""
    values = arguments["hidden_states"].float()
    num_heads = values.shape[2]
    inputs = _floats(dt=arguments["dt"], B=arguments["B"], C=arguments["C"])
    fixed = _floats(A=arguments["A"])
    for name in ("D", "dt_bias"):
        if arguments[name] is not None:
            fixed[name] = arguments[name].float().reshape(num_heads, -1)[:, 0]
    options = {name: arguments[name] for name in ("dt_softplus", "dt_limit")}
    dim = inputs["B"].shape[-1]

    def run(
        inputs: Inputs, fixed: Inputs, values: ValueChannels, state: State | None
    ) -> tuple[ValueChannels, State]:
        output, after = kernel(
            values,
            inputs["dt"],
            fixed["A"],
            inputs["B"],
            inputs["C"],
            chunk_size=min(KIMI_CHUNK, values.shape[1]),
            D=fixed.get("D"),
            dt_bias=fixed.get("dt_bias"),
            initial_states=None if state is None else state.transpose(-1, -2),
            return_final_states=True,
            **options,
        )
        return output, after.transpose(-1, -2)

    step = inputs["dt"] + fixed["dt_bias"] if "dt_bias" in fixed else inputs["dt"]
    step = nn.functional.softplus(step) if options["dt_softplus"] else step
    step = step.clamp(*options["dt_limit"])
    return LinearLayer(values, inputs, fixed, run, dim, step * fixed["A"], work_dim=2 * dim)


def _mamba2_step(kernel: Callable[..., Any], arguments: Arguments) -> LinearLayer:
    """Read Mamba-2 for one token; the kernel overwrites its state argument."""
    values = arguments["hidden_states"].float().unsqueeze(1)
    inputs = _floats(
        dt=arguments["dt"][:, :, 0].unsqueeze(1), B=arguments["B"].unsqueeze(1), C=arguments["C"].unsqueeze(1)
    )
    fixed = _floats(A=arguments["A"][:, 0, 0])
    for name in ("D", "dt_bias"):
        if arguments[name] is not None:
            fixed[name] = arguments[name].float()[:, 0]
    softplus, dim = arguments["dt_softplus"], inputs["B"].shape[-1]

    def run(
        inputs: Inputs, fixed: Inputs, values: ValueChannels, state: State | None
    ) -> tuple[ValueChannels, State]:
        *_, num_channels = values.shape
        after = values.new_zeros(*values[:, 0].shape, dim) if state is None else state.mT.clone()
        expanded = {name: tensor[:, None].expand(-1, num_channels) for name, tensor in fixed.items()}
        output = kernel(
            after,
            values[:, 0],
            inputs["dt"][:, 0, :, None].expand(-1, -1, num_channels),
            expanded["A"][..., None].expand(-1, -1, dim),
            inputs["B"][:, 0],
            inputs["C"][:, 0],
            expanded.get("D"),
            dt_bias=expanded.get("dt_bias"),
            dt_softplus=softplus,
        )
        return output.unsqueeze(1), after.mT

    step = inputs["dt"] + fixed["dt_bias"] if "dt_bias" in fixed else inputs["dt"]
    step = nn.functional.softplus(step) if softplus else step
    return LinearLayer(values, inputs, fixed, run, dim, step * fixed["A"])


def _mamba(kernel: Callable[..., Any], arguments: Arguments) -> ChannelLayer:
    """Read Mamba (Gu & Dao 2023, 2312.00752) as one head with all channels."""
    return _channels(
        arguments,
        arguments["dt"],
        arguments["B"],
        arguments["C"],
        arguments["delta_bias"],
        arguments["delta_softplus"],
    )


def _mamba_step(kernel: Callable[..., Any], arguments: Arguments) -> ChannelLayer:
    """Read Mamba for one token."""
    dt, write, read = (arguments[name].unsqueeze(-1) for name in ("dt", "B", "C"))
    return _channels(arguments, dt, write, read, arguments["dt_bias"], arguments["dt_softplus"])


def _channels(
    arguments: Arguments, dt: Tensor, write: Tensor, read: Tensor, bias: Tensor | None, softplus: bool
) -> ChannelLayer:
    """Return a layer from steps (text, channel, token), writes and reads (text, state, token)."""
    step = dt.float() if bias is None else dt.float() + bias.float().unsqueeze(-1)
    step = nn.functional.softplus(step) if softplus else step
    skip = step.new_zeros(step.shape[1]) if arguments["D"] is None else arguments["D"].float()
    return ChannelLayer(
        step.transpose(1, 2).unsqueeze(1),
        arguments["A"].float().unsqueeze(0),
        write.float().transpose(1, 2).unsqueeze(1),
        read.float().transpose(1, 2).unsqueeze(1),
        skip.unsqueeze(0),
    )


def _side_by_side(layers: list[ChannelLayer]) -> ChannelLayer:
    """Join the heads that a module computes one after another (Zamba)."""
    per_text = (
        torch.cat([getattr(layer, name) for layer in layers], dim=1) for name in ("step", "write", "read")
    )
    step, write, read = per_text
    decay, skip = (torch.cat([getattr(layer, name) for layer in layers]) for name in ("decay", "skip"))
    return ChannelLayer(step, decay, write, read, skip)


def lightning_kernel(
    inputs: Inputs, fixed: Inputs, values: ValueChannels, state: State | None
) -> tuple[ValueChannels, State]:
    """Compute o_i = sum_j q_i k_j exp(-s (i - j)) v_j (Qin et al. 2024, 2401.04658; MiniMax, 2501.08313)."""
    query, key, values = (part.transpose(1, 2) for part in (inputs["query"], inputs["key"], values))
    places = torch.arange(query.shape[2], device=query.device, dtype=query.dtype)
    slope = fixed["slope"].view(-1, 1, 1)
    behind = places.unsqueeze(-1) - places
    weights = (query @ key.mT) * (-slope * behind.clamp(min=0)).exp().tril()
    output = weights @ values
    left = (-slope * (len(places) - 1 - places).unsqueeze(-1)).exp()
    after = (key * left).mT @ values
    if state is not None:
        output = output + (query * (-slope * (places + 1).unsqueeze(-1)).exp()) @ state
        after = after + (-slope * len(places)).exp() * state
    return output.transpose(1, 2), after


def _lightning(module: Any, hidden_states: Tensor, attention_mask: Tensor | None) -> LinearLayer:
    """Compute lightning attention from the parameters of a module."""
    mixed = module.act_fn(module.qkv_proj(hidden_states))
    if attention_mask is not None:
        mixed = mixed * attention_mask[:, :, None]
    mixed = mixed.reshape(*mixed.shape[:2], module.num_attention_heads, -1).float()
    query, key, value = mixed.split(module.head_dim, dim=-1)
    slope = module.slope_rate.float().flatten()
    log_decay = (-slope).expand(*mixed.shape[:3])
    inputs = {"query": query, "key": key}
    return LinearLayer(value, inputs, {"slope": slope}, lightning_kernel, module.head_dim, log_decay)


KERNELS: Mapping[str, Callable[[Callable[..., Any], Arguments], AnyLinearLayer]] = {
    "torch_chunk_gated_delta_rule": _delta_rule,
    "torch_recurrent_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
    "recurrent_kimi_delta_attention": _delta_rule,
    "mamba2_chunk_scan": _mamba2,
    "mamba2_selective_state_update": _mamba2_step,
    "mamba_selective_scan": _mamba,
    "mamba_selective_state_update": _mamba_step,
}
"""The functions that make a layer from a call of each kernel, by the kernel's name in transformers.

Some kernels take whole texts, others take one more token.
"""
LIGHTNING = "lightning attention"
KINDS = {
    "mamba2_chunk_scan": "Mamba-2",
    "mamba2_selective_state_update": "Mamba-2",
    "mamba_selective_scan": "Mamba-1, mean of channels",
    "mamba_selective_state_update": "Mamba-1, mean of channels",
}
"""The names of mixers that have several kinds, by kernel."""
ALL_CHANNELS = "Mamba-1, all channels"
"""The name of the heads that the output projection of Mamba-1 reads."""


@dataclass
class _Capture:
    """Records a module's kernel calls while the module runs."""

    consume: MixerConsumer
    calls: list[tuple[str, Callable[..., Any], Arguments]] = field(default_factory=list)

    def before(self, module: nn.Module, inputs: Any) -> None:
        """Start capturing a module; models that run in turns have separate captures."""
        if _active.get() is self:
            self.calls.clear()

    def after(
        self, name: str, mixer: str, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        """Pass the heads of a module that has finished to `consume`, if it called a kernel."""
        heads: AnyLinearLayer | None = None
        calls, self.calls = self.calls, []
        if mixer == LIGHTNING:
            arguments = signature(module.forward).bind(*inputs, **named).arguments
            heads = _lightning(module, arguments["hidden_states"], arguments.get("attention_mask"))
        elif calls:
            layers = [KERNELS[kernel_name](kernel, arguments) for kernel_name, kernel, arguments in calls]
            channel_layers = [layer for layer in layers if isinstance(layer, ChannelLayer)]
            heads = _side_by_side(channel_layers) if channel_layers else layers[0]
            mixer = KINDS.get(calls[0][0], mixer)
        if heads is not None:
            projected = ALL_CHANNELS if isinstance(heads, ChannelLayer) else ""
            self.consume(CapturedMixer(name, mixer, heads, projected))


_active: ContextVar[_Capture | None] = ContextVar("capture", default=None)


def _recording(kernel: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a wrapper of the kernel that records its arguments if a capture is active in this thread."""
    kernel_signature = signature(kernel)

    @wraps(kernel)
    def call(*arguments: Any, **named: Any) -> Any:
        result = kernel(*arguments, **named)
        active = _active.get()
        if active is not None:
            bound = kernel_signature.bind(*arguments, **named)
            bound.apply_defaults()
            active.calls.append((name, kernel, bound.arguments))
        return result

    return call


_changes: dict[str, SharedChange] = {}
"""The replacements of kernels in modules of transformers, by module name."""


def _replaced_in(module: str) -> SharedChange:
    """Return the replacements of all kernels in a transformers module."""
    if module not in _changes:
        names = vars(sys.modules[module])

        def remember() -> Callable[[], None]:
            before = {name: names[name] for name in KERNELS if name in names}
            return partial(names.update, before)

        def make() -> None:
            names.update({name: _recording(names[name], name) for name in KERNELS if name in names})

        _changes.setdefault(module, SharedChange(remember, make))
    return _changes[module]


@contextmanager
def capture(mixers: Mapping[str, Mixer], consume: MixerConsumer) -> Iterator[None]:
    """Pass the layer of each module that runs in this thread to `consume`, within this context."""
    active = _Capture(consume)
    with ExitStack() as hooks:
        for module_name in {type(module).__module__ for module, _ in mixers.values()}:
            hooks.enter_context(_replaced_in(module_name).made())
        for name, (module, mixer) in mixers.items():
            hooks.enter_context(module.register_forward_pre_hook(active.before))
            after = partial(_after, active, name, mixer)
            hooks.enter_context(module.register_forward_hook(after, with_kwargs=True))
        token = _active.set(active)
        try:
            yield
        finally:
            _active.reset(token)


def _after(
    active: _Capture,
    name: str,
    mixer: str,
    module: nn.Module,
    inputs: tuple[Any, ...],
    named: dict[str, Any],
    output: Any,
) -> None:
    """Run after a module, but act only in the thread of the capture."""
    if _active.get() is active:
        active.after(name, mixer, module, inputs, named)
