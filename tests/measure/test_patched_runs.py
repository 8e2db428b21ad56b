"""Runs while heads are changed: single layers, nested runs, two models, contexts, threads."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import attncli
from attncli.models.patched_heads import PatchedHead
from tests.measure.test_patched_heads import ALBERT, without_output
from tools.architecture_sweep.folders import tiny_model
from tools.tiny_architectures import GROUPED

IDS = torch.tensor([[5, 6, 7, 5, 8, 9, 6, 3, 7, 11, 2]])
HEAD_DIM = 8


def seeded(model: type[PreTrainedModel], config: Any) -> Any:
    """A model whose heads matter more than in a freshly initialised model."""
    torch.manual_seed(4)
    made = model(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(4 if parameter.ndim > 1 else 1)
    return made


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    made: LlamaForCausalLM = seeded(LlamaForCausalLM, LlamaConfig(**GROUPED, eos_token_id=2))
    return made


@pytest.fixture(scope="module")
def qwen() -> Qwen3ForCausalLM:
    made: Qwen3ForCausalLM = seeded(Qwen3ForCausalLM, Qwen3Config(**GROUPED, eos_token_id=2))
    return made


@pytest.fixture(autouse=True)
def nothing_is_left(llama: LlamaForCausalLM, qwen: Qwen3ForCausalLM) -> Iterator[None]:
    yield
    for model in (llama, qwen):
        assert model.config._attn_implementation == "sdpa"
        assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


@contextmanager
def zeroed(model: Any, *heads: str) -> Iterator[None]:
    """The oracle: inside the block, torch hooks put zeros where W_O reads these heads."""
    hooks = []
    for name in heads:
        layer, head = map(int, name.split(":"))
        columns = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)

        def zero(_module: nn.Module, inputs: tuple[Tensor], columns: slice = columns) -> tuple[Tensor]:
            read = inputs[0].clone()
            read[..., columns] = 0
            return (read,)

        hooks.append(model.model.layers[layer].self_attn.o_proj.register_forward_pre_hook(zero))
    yield
    for hook in hooks:
        hook.remove()


@torch.no_grad()
def logits_of(model: Any) -> Tensor:
    logits: Tensor = model(IDS).logits
    return logits


def logits_without(model: Any, *heads: str) -> Tensor:
    with zeroed(model, *heads):
        return logits_of(model)


def assert_same(some: Tensor, others: Tensor) -> None:
    torch.testing.assert_close(some, others, atol=2e-5, rtol=0)


def layer_alone(model: Any, number: int) -> Callable[[Tensor], Tensor]:
    """Return a function that runs one layer on states, without the model."""
    positions = model.model.rotary_emb(torch.zeros(1), torch.arange(IDS.shape[1])[None])

    def run(states: Tensor) -> Tensor:
        output: Tensor = model.model.layers[number](
            states, position_embeddings=positions, attention_mask=None
        )
        return output

    return run


def states() -> Tensor:
    return torch.randn(1, IDS.shape[1], 32, generator=torch.Generator().manual_seed(0))


def test_a_layer_that_runs_alone_is_changed_each_time(llama: LlamaForCausalLM) -> None:
    """Before, between and after runs: the module determines the layer, not the number of calls."""
    run, plain = layer_alone(llama, 1), layer_alone(llama, 0)(states())
    with zeroed(llama, "1:1"):
        expected = run(states())
    with attncli.patch(attncli.open_model(llama), "1:1", without_output):
        some = [run(states()), run(states())]
        whole = logits_of(llama)
        some.append(run(states()))
        other = layer_alone(llama, 0)(states())
    for each in some:
        assert_same(each, expected)
    assert_same(other, plain)
    assert_same(whole, logits_without(llama, "1:1"))
    assert not torch.allclose(expected, run(states()), atol=1e-3)


def test_a_module_of_several_layers_cannot_run_alone() -> None:
    model = ALBERT.build()
    layer = model.encoder.albert_layer_groups[0].albert_layers[0]
    for runs_before in (False, True):
        with (
            pytest.raises(attncli.UserError, match="serves several layers, so its layer number is unknown"),
            attncli.patch(attncli.open_model(model), "1:1", without_output),
        ):
            if runs_before:
                model(IDS)
            layer(states())


def test_a_change_may_run_the_model_itself(llama: LlamaForCausalLM) -> None:
    """During the caller's run and during a measurement of attn."""
    model, runs = attncli.open_model(llama), list[bool]()

    def runs_once(head: PatchedHead) -> Tensor:
        runs.append(head.name == "0:1" and not (len(runs) and runs[-1]))
        if runs[-1]:
            logits_of(llama)
        return without_output(head)

    heads = ["0:1", "1:1"]
    with attncli.patch(model, heads, runs_once) as patched:
        assert_same(logits_of(llama), logits_without(llama, *heads))
        layers = attncli.layers(patched, {"ids": IDS[0].tolist()})
    assert [layer.layer for layer in layers] == [0, 1]
    with attncli.patch(model, heads, without_output) as patched:
        expected = attncli.layers(patched, {"ids": IDS[0].tolist()})
    for layer, wanted in zip(layers, expected, strict=True):
        assert_same(layer.weights(), wanted.weights())


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_recomputed_layer_is_the_same(llama: LlamaForCausalLM, use_reentrant: bool) -> None:
    """In a backward pass of this thread; a backward pass of another thread, as devices have, is refused."""
    run, model = layer_alone(llama, 1), attncli.open_model(llama)

    def gradient(backward: Callable[[Tensor], None]) -> Tensor | None:
        given = states().requires_grad_()
        backward(checkpoint(run, given, use_reentrant=use_reentrant).square().sum())
        return given.grad

    expected = states().requires_grad_()
    with zeroed(llama, "1:1"):
        run(expected).square().sum().backward()
    with attncli.patch(model, "1:1", without_output):
        got = gradient(Tensor.backward)
    assert got is not None and expected.grad is not None
    torch.testing.assert_close(got, expected.grad, atol=1e-3, rtol=1e-4)

    def in_a_thread(loss: Tensor) -> None:
        errors = list[Exception]()

        def backward() -> None:
            try:
                loss.backward()
            except Exception as error:  # the waiting thread raises any error
                errors.append(error)

        thread = Thread(target=backward)
        thread.start()
        thread.join()
        raise errors[0]

    line = "is recomputed in the backward pass"
    with pytest.raises(attncli.UserError, match=line), attncli.patch(model, "1:1", without_output):
        gradient(in_a_thread)


@pytest.mark.filterwarnings("ignore:.*activation_checkpointing")
def test_dropout_and_recomputation_in_training_are_refused() -> None:
    llama = seeded(LlamaForCausalLM, LlamaConfig(**GROUPED))
    model = attncli.open_model(llama)

    def trained() -> None:
        with attncli.patch(model, "1:1", without_output):
            llama.train()
            llama(IDS)

    llama.gradient_checkpointing_enable()
    with pytest.raises(attncli.UserError, match="turn off gradient checkpointing"):
        trained()
    with attncli.patch(model, "1:1", without_output), torch.no_grad():
        llama(IDS)
    llama.gradient_checkpointing_disable()
    trained()
    llama.model.layers[1].self_attn.attention_dropout = 0.1
    with pytest.raises(attncli.UserError, match=r"layers.1.self_attn applies dropout to its weights"):
        trained()
    assert not llama.training


def test_two_models_are_changed_at_once(llama: LlamaForCausalLM, qwen: Qwen3ForCausalLM) -> None:
    first, second = attncli.open_model(llama), attncli.open_model(qwen)
    settings: Any = {"max_new_tokens": 5, "do_sample": False}
    with zeroed(llama, "0:1"):
        written = llama.generate(IDS, **settings)
    with attncli.patch(first, "0:1", without_output), attncli.patch(second, "1:2", without_output):
        for _ in range(2):
            assert_same(logits_of(llama), logits_without(llama, "0:1"))
            assert_same(logits_of(qwen), logits_without(qwen, "1:2"))
        assisted = llama.generate(IDS, assistant_model=qwen, **settings)
        (rows,) = (attncli.next_tokens(first, {"ids": IDS[0].tolist()}).tokens[:1],)
    assert torch.equal(assisted, written)
    likeliest = logits_without(llama, "0:1")[0, -1].softmax(dim=-1).max()
    assert rows[0].probability == pytest.approx(float(likeliest), abs=1e-6)


def test_patches_of_the_same_model_add_up(llama: LlamaForCausalLM) -> None:
    """However the model is named; measurements include all patches, but are refused during a run."""
    model, ids = attncli.open_model(llama), {"ids": IDS[0].tolist()}

    def asks(head: PatchedHead) -> Tensor:
        attncli.survey(model, ids)
        return head.output

    with (
        attncli.patch(model, "0:1", without_output),
        attncli.patch(model, "1:1", without_output) as patched,
    ):
        expected = logits_without(llama, "0:1", "1:1")
        assert_same(logits_of(llama), expected)
        assert repr(patched) == repr(model)  # with the same class
        for each in (model, patched):
            probability = attncli.next_tokens(each, ids).tokens[0].probability
            assert probability == pytest.approx(float(expected[0, -1].softmax(dim=-1).max()), abs=1e-6)
    for run in (lambda: logits_of(llama), lambda: attncli.survey(model, ids)):
        with (
            pytest.raises(
                attncli.UserError, match="is already being measured by the code that made this call"
            ),
            attncli.patch(model, "0:1", asks),
        ):
            run()


def test_a_patch_applies_in_every_context_of_its_thread(llama: LlamaForCausalLM) -> None:
    """Opened in a copied context, as in some notebooks, it ends here; a copy made inside does not keep it."""
    opened = attncli.patch(attncli.open_model(llama), "0:1", without_output)
    expected, plain = logits_without(llama, "0:1"), logits_of(llama)
    copy_context().run(opened.__enter__)
    later = copy_context()
    assert_same(logits_of(llama), expected)
    opened.__exit__(None, None, None)
    with attncli.patch(attncli.open_model(llama), "1:1", lambda head: head.output):
        assert_same(later.run(logits_of, llama), plain)


def test_another_task_of_the_thread_is_refused(llama: LlamaForCausalLM) -> None:
    async def task(head: str) -> Tensor:
        with attncli.patch(attncli.open_model(llama), head, without_output):
            await asyncio.sleep(0.01)
            return logits_of(llama)

    async def both() -> list[Any]:
        return await asyncio.gather(task("0:1"), task("1:1"), return_exceptions=True)

    logits, error = asyncio.run(both())
    assert_same(logits, logits_without(llama, "0:1"))
    assert isinstance(error, attncli.UserError)


def test_a_patch_without_a_complete_run_is_not_an_error(llama: LlamaForCausalLM) -> None:
    model = attncli.open_model(llama)
    with attncli.patch(model, "0:1", without_output):
        thread = Thread(target=logits_of, args=(llama,))
        thread.start()
        thread.join()
    with attncli.patch(model, "0:1", without_output), pytest.raises(IndexError):
        llama(torch.tensor([[999]]))


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")  # transformers' own
@pytest.mark.parametrize("name", ["jamba", "lfm2", "nemotron_h", "zamba2"])
def test_a_head_of_a_layer_without_a_softmax_is_refused(name: str) -> None:
    """The oracle: the kind of each layer in the config."""
    model = tiny_model(name)
    opened = attncli.open_model(model)
    for layer, kind in enumerate(model.config.layer_types):
        if kind in ("full_attention", "hybrid"):
            continue
        for head in (0, 99):
            with (
                pytest.raises(
                    attncli.UserError, match=rf"heads: no head in layer {layer} .*\(got {layer}:{head}\)"
                ),
                attncli.patch(opened, f"{layer}:{head}", without_output),
            ):
                pass
    layer = model.config.layer_types.index("hybrid" if name == "zamba2" else "full_attention")
    before = model(IDS)[0]
    with attncli.patch(opened, f"{layer}:0", without_output):
        assert not torch.allclose(model(IDS)[0], before, atol=1e-4)


@torch.no_grad()
def test_a_layer_without_captured_attention_is_named() -> None:
    """A missing layer, and a layer that computes the difference of two; both are found in the run."""
    model = seeded(LlamaForCausalLM, LlamaConfig(**GROUPED))
    opened = attncli.open_model(model)
    model.model.layers = model.model.layers[:1]
    with (
        pytest.raises(attncli.UserError, match="of layer 1, so 1:0 was not changed"),
        attncli.patch(opened, "1:0", without_output),
    ):
        model(IDS)
    differences = seeded(DiffLlamaForCausalLM, DiffLlamaConfig(**GROUPED))
    with (
        pytest.raises(attncli.UserError, match="attention in more than one part"),
        attncli.patch(attncli.open_model(differences), "1:0", without_output),
    ):
        differences(IDS)


def test_one_head_may_have_two_names(llama: LlamaForCausalLM) -> None:
    """The parts are merged; a part that is given twice is an error."""
    model = attncli.open_model(llama)
    changes: Any = {"0:1": {"output": without_output}, (0, 1): {"value": lambda head: head.value}}
    with attncli.hooks(model, changes):
        assert_same(logits_of(llama), logits_without(llama, "0:1"))
    with attncli.patch(model, ["0:1", "00:01"], without_output):
        assert_same(logits_of(llama), logits_without(llama, "0:1"))
    with pytest.raises(attncli.UserError, match="changes: 0:1: output: must be given only once"):
        attncli.hooks(model, {"0:1": {"output": without_output}, "00:1": {"output": without_output}})


def test_wrong_models_and_replacements_are_one_line(llama: LlamaForCausalLM) -> None:
    for wrong in (llama, 5, None):
        with pytest.raises(attncli.UserError, match="model: must be a model from open_model"):
            attncli.hooks(wrong, {"0:1": {"output": without_output}})  # type: ignore[arg-type]
    made: dict[str, Callable[[Tensor], Tensor]] = {
        "torch.sparse_coo": Tensor.to_sparse,
        "meta": lambda output: output.to("meta"),
        "torch.complex64": lambda output: output.to(torch.complex64),
    }
    for kind, given in made.items():
        with (
            pytest.raises(attncli.UserError, match=rf"dense tensor of real numbers \(got {kind}\)"),
            attncli.patch(attncli.open_model(llama), "0:1", lambda head: given(head.output)),  # noqa: B023
        ):
            logits_of(llama)


def test_writing_into_other_parts_changes_nothing(llama: LlamaForCausalLM) -> None:
    """A change may return the head's own tensor with new numbers."""

    def spoils(head: PatchedHead) -> Tensor:
        for tensor in (head.query, head.key, head.value, head.pattern):
            tensor.zero_()
        head.output.zero_()
        return head.output

    parts: Any = {"output": spoils}
    with attncli.hooks(attncli.open_model(llama), {"0:1": parts}):
        outputs = llama(IDS, use_cache=True)
    assert_same(outputs.logits, logits_without(llama, "0:1"))
    plain = llama(IDS, use_cache=True).past_key_values.layers[0]
    for name in ("keys", "values"):
        assert_same(getattr(outputs.past_key_values.layers[0], name), getattr(plain, name))


@torch.no_grad()
def test_returned_weights_contain_the_replacement() -> None:
    """The returned attentions are those of the changed heads and, for other heads, of eager attention."""
    llama = seeded(LlamaForCausalLM, LlamaConfig(**GROUPED))
    opened = attncli.open_model(llama)
    with attncli.patch(opened, "1:2", lambda head: head.pattern.square(), part="pattern") as patched:
        changed = llama(IDS, output_attentions=True).attentions
        weights = attncli.layers(patched, {"ids": IDS[0].tolist()})[1].weights()
    llama.set_attn_implementation("eager")
    plain = llama(IDS, output_attentions=True).attentions
    assert_same(changed[0], plain[0])
    assert_same(changed[1][:, 2], plain[1][:, 2].square())
    assert_same(weights, changed[1])
    assert_same(changed[1][:, 1], plain[1][:, 1])


def test_changing_the_implementation_inside_a_patch_is_reported(llama: LlamaForCausalLM) -> None:
    with (
        pytest.raises(attncli.UserError, match="was set to sdpa while its heads were changed"),
        attncli.patch(attncli.open_model(llama), "1:2", without_output),
    ):
        llama.set_attn_implementation("sdpa")


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_padded_texts_are_continued_as_with_torch_hooks(llama: LlamaForCausalLM, cache: str) -> None:
    """A static cache has room for tokens beyond the mask."""
    ids = torch.tensor([[0, 0, 0, 5, 8, 9, 6, 3, 7, 11, 3], IDS[0].tolist()])
    settings: Any = {"attention_mask": ids.ne(0).long(), "max_new_tokens": 4, "do_sample": False}
    settings |= {} if cache == "dynamic" else {"cache_implementation": cache}
    with zeroed(llama, "0:1"):
        written = llama.generate(ids, **settings)
    with attncli.patch(attncli.open_model(llama), "0:1", without_output):
        assert torch.equal(llama.generate(ids, **settings), written)


def test_texts_with_nan_weights_are_reported(llama: LlamaForCausalLM) -> None:
    with (
        attncli.patch(
            attncli.open_model(llama), "1:2", lambda head: head.query * torch.nan, part="query"
        ) as m,
        pytest.raises(attncli.UserError, match=r"the weights of head 1:2 are NaN on one of the texts"),
    ):
        attncli.text_differences(m, {"ids": [5, 6, 7]}, {"ids": [5, 8, 7]})
