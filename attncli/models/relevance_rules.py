"""Rules under which a model's gradient x input is AttnLRP (Achtibat et al. 2024, 2402.05602)."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from attncli.errors import UserError
from attncli.models.capture import with_eager_attention
from attncli.models.frozen_norms import frozen_norm
from attncli.models.patched_heads import is_patched
from attncli.models.torch_functions import MATMULS, SCALINGS, SOFTMAXES, functions_named


@contextmanager
def _parameters_fixed(model: PreTrainedModel) -> Iterator[None]:
    """Inside the block, turn off the gradients of all parameters, which would take time and memory."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


@contextmanager
def with_gradients(model: PreTrainedModel) -> Iterator[None]:
    """Inside the block, use eager attention, and compute gradients only for vectors.

    Raises UserError if heads are changed, since eager attention would ignore the changes.
    """
    if is_patched(model):
        raise UserError("model: gradients need the unchanged model: call this outside `hooks` and `patch`")
    with with_eager_attention(model), _parameters_fixed(model), torch.enable_grad():
        yield


ACTIVATIONS = functions_named(
    *("silu", "gelu", "relu", "relu6", "tanh", "sigmoid", "softplus", "elu", "leaky_relu", "hardswish"),
    *("mish", "pow", "square", "exp"),
)
"""Functions that act on each entry separately."""
PRODUCTS = MATMULS | SCALINGS
SUMS_WITH_BIAS = functions_named("add", "addmm", "baddbmm")
JOINS = functions_named("cat", "concat")
ACTIVATION_NAMES = ("act", "elu", "silu", "swish", "tanh", "sigmoid")


class Relevance:
    """Changed gradients for which gradient x input is AttnLRP, and the relevance that constants absorb.

    Norms keep their scale; functions of single entries pass relevance on (equation 9); in a product of two
    vectors that both depend on the tokens, each gets half (equation 15); softmax is linear around its scores
    (equation 13), which leaves a constant. Biases and this constant absorb the rest of the relevance,
    `absorbed`.
    """

    def __init__(self) -> None:
        self.absorbed = torch.zeros((), dtype=torch.float64)
        self._constants: list[Tensor] = []

    def of(self, logits: Float[Tensor, " new"], vectors: Tensor) -> Float[Tensor, " token"]:
        """Return, in float64, the relevance of each token's input vector for the sum of the logits."""
        wanted = [vectors, *self._constants]
        gradient, *constant_gradients = torch.autograd.grad(
            logits.sum(), wanted, allow_unused=True, retain_graph=True
        )
        for constant, constant_gradient in zip(self._constants, constant_gradients, strict=True):
            if constant_gradient is not None:
                self._add(constant, constant_gradient, 1)
        return (gradient * vectors.detach())[0].double().sum(dim=-1).cpu()

    def _add(self, tensor: Tensor, gradient: Tensor, sign: int) -> None:
        relevance = torch.where(gradient == 0, 0.0, gradient.detach() * tensor.detach())
        self.absorbed = self.absorbed + sign * relevance.double().sum().cpu()

    def take(self, tensor: Tensor, sign: int = 1) -> Tensor:
        """Return the tensor; its relevance is added to what is absorbed, or subtracted if `sign` is -1."""
        marked = tensor.view_as(tensor)
        # torch does not annotate this
        marked.register_hook(  # type: ignore[no-untyped-call]
            lambda gradient: self._add(tensor, gradient, sign)
        )
        return marked

    def constant(self, tensor: Tensor) -> Tensor:
        """Return a tensor that does not depend on the tokens and absorbs its relevance."""
        self._constants.append(tensor.detach().requires_grad_())
        return self._constants[-1]

    @contextmanager
    def made(self, model: PreTrainedModel) -> Iterator[None]:
        """Inside the block, apply these rules to the model."""
        with ExitStack() as opened:
            for module in model.modules():
                name = type(module).__name__.lower()
                if any(module.children()):
                    continue
                if "norm" in name:
                    opened.enter_context(module.register_forward_hook(_with_frozen_scale))
                elif not [*module.parameters(recurse=False)] and any(
                    part in name for part in ACTIVATION_NAMES
                ):
                    opened.enter_context(module.register_forward_hook(_passing_on))
            opened.enter_context(_Rules(self))
            yield


def _with_frozen_scale(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
    """Return the output of a norm, with its scale as a constant."""
    if len(inputs) != 1 or not isinstance(output, Tensor) or not output.requires_grad:
        return output
    frozen = frozen_norm(module, inputs[0].detach(), output.detach())
    return output if frozen is None else frozen.of(inputs[0])


def _passing_on(_module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
    """Return the output of an activation, as its input times a constant."""
    if len(inputs) != 1 or not isinstance(output, Tensor) or output.shape != inputs[0].shape:
        return output
    return _as_factor(inputs[0], output)


def _as_factor(read: Tensor, gave: Tensor) -> Tensor:
    """Express `gave` as `read` times constant factors, or as a constant where `read` is 0."""
    factor = torch.where(read == 0, 0.0, gave / read).detach()
    constant = torch.where(read == 0, gave, 0.0).detach()
    return read * factor + constant


class _Halved(torch.autograd.Function):
    """The identity, with its gradient halved."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient / 2


class _Rules(TorchFunctionMode):
    """torch's functions with the rules of `Relevance`."""

    def __init__(self, relevance: Relevance) -> None:
        super().__init__()
        self.relevance = relevance

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = dict(kwargs or {})
        if func in JOINS and torch.is_grad_enabled():
            return self._joined(func, args, keywords)
        changing = [value for value in args if isinstance(value, Tensor) and value.requires_grad]
        if not changing or not torch.is_grad_enabled():
            return func(*args, **keywords)
        if func in PRODUCTS and len(changing) == 2:
            return func(*(self._halved(value) for value in args), **keywords)
        if func in SOFTMAXES:
            return self.relevance.take(func(self.relevance.take(args[0], -1), *args[1:], **keywords))
        if func in ACTIVATIONS:
            return _as_factor(args[0], func(*args, **keywords))
        if func is functional.linear:
            return self._linear(*args, **keywords)
        if func in SUMS_WITH_BIAS:
            return self._sum(func, args, keywords)
        return func(*args, **keywords)

    def _halved(self, value: Any) -> Any:
        # torch does not annotate this
        is_changing = isinstance(value, Tensor) and value.requires_grad
        return _Halved.apply(value) if is_changing else value  # type: ignore[no-untyped-call]

    def _linear(self, read: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        product = functional.linear(read, weight)
        return product if bias is None else product + self.relevance.constant(bias)

    def _sum(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Let summands that do not depend on tokens absorb relevance; each factor of a product gets half."""
        added, *factors = args
        if len(factors) == 2 and sum(value.requires_grad for value in factors) == 2:
            factors = [self._halved(value) for value in factors]
        elif len(factors) == 1 and isinstance(factors[0], Tensor) and not factors[0].requires_grad:
            factors = [self._absorbing(factors[0])]
        if isinstance(added, Tensor) and not added.requires_grad:
            added = self._absorbing(added)
        return func(added, *factors, **named)

    def _joined(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Let vectors that do not depend on the tokens ([CLS] before a grid's patches) absorb relevance."""
        parts = [*args[0]] if args else []
        if any(part.requires_grad for part in parts):
            args = ([part if part.requires_grad else self._absorbing(part) for part in parts], *args[1:])
        return func(*args, **named)

    def _absorbing(self, value: Tensor) -> Tensor:
        return self.relevance.constant(value) if value.is_floating_point() else value
