"""Heads with their outputs on another prompt, against TransformerLens and hooks in transformers."""

from typing import Any

import pytest
import torch
from torch import Tensor

import attncli
from attncli.errors import UserError
from attncli.features.ablate.effects import HeadEffects
from attncli.models.capture import with_eager_attention
from attncli.models.pretrained import Pretrained
from tests.features.why.test_scores import LENS, reading, tiny

TEXT, OTHER, ANSWER, AGAINST = "to be or not to b", "to go or not to g", "e", "o"
"""As in tools/transformer_lens_scores.py."""


@pytest.fixture(scope="module")
def shipped() -> Pretrained:
    return attncli.open_model()


def swapped(pretrained: Pretrained, **settings: Any) -> HeadEffects:
    return attncli.ablate(
        pretrained, TEXT, method="swap", other=OTHER, answer=ANSWER, against=AGAINST, **settings
    )


def test_swaps_match_transformer_lens_in_both_directions(shipped: Pretrained) -> None:
    """tools/transformer_lens_scores.py wrote the numbers of get_act_patch_attn_head_out_all_pos."""
    found = swapped(shipped)
    for name, rows, baseline in (
        ("text", found.heads, found.baseline),
        ("other", found.back, found.back_baseline),
    ):
        assert len(rows) == 8
        for row in rows:
            own = row["logit_difference"] + baseline["logit_difference"]
            assert own == pytest.approx(LENS["patches"][name][row["layer"]][row["head"]], abs=1e-4)
    way = found.back_baseline["logit_difference"] - found.baseline["logit_difference"]
    assert [row["restored"] for row in found.heads] == pytest.approx(
        [row["logit_difference"] / way for row in found.heads]
    )


def test_swaps_at_each_token_match_transformer_lens(shipped: Pretrained) -> None:
    found = swapped(shipped, token="each")
    assert len(found.heads) == 8 * 18
    for rows, baseline, name in (
        (found.heads, found.baseline, "text, by token"),
        (found.back, found.back_baseline, "other, by token"),
    ):
        for row in rows:
            theirs = LENS["patches"][name][row["layer"]][row["token"]][row["head"]]
            own = row["logit_difference"] + baseline["logit_difference"]
            assert own == pytest.approx(theirs, abs=1e-4)


def test_a_single_token_matches_its_row_among_all_tokens(shipped: Pretrained) -> None:
    every = {(row["layer"], row["head"], row["token"]): row for row in swapped(shipped, token="each").heads}
    for row in swapped(shipped, token=5, heads="0:1,1:2").heads:
        each = every[row["layer"], row["head"], 5]
        assert row["logit_difference"] == pytest.approx(each["logit_difference"], abs=1e-5)


def test_path_patching_matches_hooks_on_one_head(shipped: Pretrained) -> None:
    """The stream that 1:2 reads contains what one head wrote on the other prompt, and no other change."""
    found = swapped(shipped, into="1:2")
    assert [(row["layer"], row["head"]) for row in found.heads] == [(0, head) for head in range(4)]
    model: Any = shipped.whole
    first, second = model.transformer.h
    ids = [attncli.read_text(shipped, text).text.ids.unsqueeze(0) for text in (TEXT, OTHER)]
    answers = [shipped.encoded(text, add_special_tokens=False)["input_ids"][0] for text in (ANSWER, AGAINST)]
    inputs: dict[Any, Tensor] = {}

    def keep(module: Any, given: tuple[Tensor, ...]) -> None:
        inputs[module] = given[0].clone()

    def difference(logits: Tensor) -> float:
        return float(logits[0, -1, answers[0]] - logits[0, -1, answers[1]])

    with with_eager_attention(model), torch.no_grad():
        heads = []
        for own in ids:
            with first.attn.c_proj.register_forward_pre_hook(keep):
                model(input_ids=own)
            heads.append(inputs[first.attn.c_proj])
        plain = difference(model(input_ids=ids[0]).logits)
        for row in found.heads:
            columns = slice(16 * row["head"], 16 * row["head"] + 16)
            weight = first.attn.c_proj.weight[columns]
            added = (heads[1] - heads[0])[..., columns] @ weight

            def add(module: Any, given: tuple[Tensor, ...], added: Tensor = added) -> tuple[Tensor, ...]:
                return (given[0] + added, *given[1:])

            with (
                second.register_forward_pre_hook(add),
                second.attn.c_proj.register_forward_pre_hook(keep),
            ):
                model(input_ids=ids[0])
            changed = inputs[second.attn.c_proj][..., 32:48]

            def replace_head(module: Any, given: tuple[Tensor, ...], changed: Tensor = changed) -> Any:
                read = given[0].clone()
                read[..., 32:48] = changed
                return (read,)

            with second.attn.c_proj.register_forward_pre_hook(replace_head):
                patched = difference(model(input_ids=ids[0]).logits)
            assert row["logit_difference"] == pytest.approx(patched - plain, abs=1e-4)


@pytest.mark.parametrize("name", ["Llama", "BERT", "GPT-2", "Gemma 2"])
def test_only_a_different_prompt_changes_the_output(name: str) -> None:
    pretrained = tiny(name)
    same = attncli.ablate(pretrained, reading(), method="swap", other=reading())
    assert max(row["output_change"] for row in same.heads) < 1e-5
    turned = reading()
    turned = type(turned)(type(turned.text)(turned.text.tokens[::-1], turned.text.ids.flip(0)))
    found = attncli.ablate(pretrained, reading(), method="swap", other=turned)
    assert len(found.heads) == len(found.back) == 12
    assert min(row["output_change"] for row in (*found.heads, *found.back)) > 1e-4
    if name != "BERT":  # whose norms between blocks are carried along, frozen
        paths = attncli.ablate(pretrained, reading(), method="swap", other=turned, into="2:1")
        assert len(paths.heads) == 8 and max(row["output_change"] for row in paths.heads) > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"other": OTHER, "into": "1:1", "heads": "0:1,1:0"}, "into: must be in a later layer"),
        ({"other": OTHER, "into": "2:1"}, "into: must be from 0:0 to 1:3"),
        ({}, "other: must be another prompt for method swap (got none)"),
    ],
)
def test_what_cannot_be_swapped_is_refused(
    settings: dict[str, Any], message: str, shipped: Pretrained
) -> None:
    with pytest.raises(UserError) as error:
        attncli.ablate(shipped, TEXT, method="swap", **settings)
    assert str(error.value).startswith(message)


def test_pairs_have_means_with_intervals(shipped: Pretrained) -> None:
    texts, others = ["to be or not to b", "so do or not so d"], ["to go or not to g", "so he or not so h"]
    alone = [
        attncli.ablate(shipped, text, method="swap", other=other, answer="e", against="o").heads[1]
        for text, other in zip(texts, others, strict=True)
    ]
    row = attncli.ablate(shipped, texts, method="swap", other=others, answer="e", against="o").heads[1]
    mean = sum(one["logit_difference"] for one in alone) / 2
    assert row["logit_difference"] == pytest.approx(mean, abs=1e-5)
    assert row["logit_difference_low"] < mean < row["logit_difference_high"]
