"""`attn heads` on the shipped model, and on folders with tiny models."""

from pathlib import Path

import pytest
import torch

from attncli.core.names import IN_TIME
from attncli.runs.saved_reports import parse_reports
from attncli.settings.heads import HeadStatistic
from tests.conftest import Attn
from tests.eager import eager_weights
from tests.features.reports import report_of
from tests.model_folders import save_model
from tests.naive_heads import naive_figures, skipped
from tests.running import run
from tests.views.test_views import shown

SENTENCE = "the cat sat because the cat was tired"


def test_the_shipped_model_has_previous_token_and_induction_heads(attn: Attn) -> None:
    """The numbers that docs/models.md states."""
    report = report_of(attn, "heads")
    rows = report["statistics"]["heads"]
    assert len(rows) == 8 and report["tokens"][0] == "<bos>" and len(report["tokens"]) == 49
    assert max(row["previous_token"] for row in rows if row["layer"] == 0) > 0.9
    assert max(row["induction_stripe"] for row in rows if row["layer"] == 1) > 0.85
    assert max(row["induction_stripe"] for row in rows if row["layer"] == 0) < 0.2
    assert rows[0].keys() >= {"layer", "module", "head", "kind", "entropy", "induction_mul"}


def test_rows_match_transformers(tmp_path: Path) -> None:
    """Compare all statistics, from the text on, with transformers."""
    from transformers import AutoModel, AutoTokenizer

    folder = save_model(tmp_path, "GPT-2")
    report = run(
        "heads", model=str(folder), sentence=SENTENCE, **{"from": ["because", "3"]}, to=["cat", "[SEP]"]
    )
    ids = AutoTokenizer.from_pretrained(folder)(SENTENCE)["input_ids"]
    expected = eager_weights(AutoModel.from_pretrained(folder), {"input_ids": torch.tensor([ids])})
    places = [
        [i for i, token in enumerate(report.tokens) if token == name] for name in ("because", "cat", "[SEP]")
    ]
    sought = [*places[0], 3], [*places[1], *places[2]]
    for row in report.statistics["heads"]:
        weights = expected["decoder", "self", row["layer"]][[row["head"]]]
        naive = naive_figures(weights, ids, special=[0, len(ids) - 1], sought=sought)
        assert row["module"] == f"h.{row['layer']}.attn"
        for name, (number,) in naive.items():
            assert row[name] == pytest.approx(number, abs=1e-5), name


def test_sorting_and_the_top(attn: Attn) -> None:
    everything = report_of(attn, "heads")["statistics"]["heads"]
    sorted_rows = report_of(attn, "heads", "--sort", "induction_stripe", "--top", "3")["statistics"]["heads"]
    best = sorted(everything, key=lambda row: -row["induction_stripe"])[:3]
    assert sorted_rows == best


def test_a_grid_of_layers_and_heads(attn: Attn) -> None:
    report = report_of(attn, "heads", "--statistic", "previous_token")
    rows = report_of(attn, "heads")["statistics"]["heads"]
    grid = report["tensors"]["previous_token"]
    assert grid["axes"] == ["layer", "head"] and "heads" not in report["statistics"]
    assert [number for layer in grid["values"] for number in layer] == [row["previous_token"] for row in rows]


def test_encoder_decoder_and_cross(tmp_path: Path) -> None:
    folder = save_model(tmp_path, "BART")
    report = run("heads", model=str(folder), sentence=SENTENCE, context="die katze")
    kinds = [(row["module"].split(".")[0], row["kind"]) for row in report.statistics["heads"]]
    assert {(stack, kind): kinds.count((stack, kind)) for stack, kind in kinds} == {
        ("encoder", "self"): 8,
        ("decoder", "self"): 8,
        ("decoder", "cross"): 8,
    }
    assert report.context_tokens == ("[CLS]", "die", "katze", "[SEP]")
    cross = [row for row in report.statistics["heads"] if row["kind"] == "cross"]
    assert all(row["distance"] is None and row["entropy"] > 0 for row in cross), "no distance across"
    saved = shown("json", [report])
    (back,) = parse_reports(saved, "saved.json").reports
    assert shown("json", [back]) == saved and back.table("without_first_rows")[2]["induction"] is None
    grids = run("heads", model=str(folder), sentence=SENTENCE, statistic="entropy").tensors
    assert set(grids) == {"entropy encoder", "entropy decoder", "entropy cross"}


def test_rollout_is_the_product_over_layers(tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    folder = save_model(tmp_path, "BERT")
    report = run("heads", model=str(folder), sentence=SENTENCE, rollout="true")
    ids = AutoTokenizer.from_pretrained(folder)(SENTENCE)["input_ids"]
    layers = eager_weights(AutoModel.from_pretrained(folder), {"input_ids": torch.tensor([ids])})
    expected = torch.eye(len(ids), dtype=torch.float64)
    for number in (0, 1):
        mean = layers["decoder", "self", number].double().mean(0)
        expected = (0.5 * mean + 0.5 * torch.eye(len(ids))) @ expected
    rolled = torch.tensor(report.tensors["rollout"].values)
    torch.testing.assert_close(rolled, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("skip", [0, 3])
def test_weighted_norms_match_transformers(tmp_path: Path, skip: int) -> None:
    from transformers import AutoModel, AutoTokenizer

    folder = save_model(tmp_path, "GPT-2")
    settings = {"weighted": "true", "skip_sink": str(skip)}
    rows = run("heads", model=str(folder), sentence=SENTENCE, **settings).statistics["heads"]
    model = AutoModel.from_pretrained(folder).eval()
    inputs = {"input_ids": torch.tensor([AutoTokenizer.from_pretrained(folder)(SENTENCE)["input_ids"]])}
    layers = eager_weights(AutoModel.from_pretrained(folder), inputs)
    with torch.no_grad():
        hidden = model(**inputs, output_hidden_states=True).hidden_states
        for layer, block in enumerate(model.h):
            values = block.attn.c_attn(block.ln_1(hidden[layer]))[0].chunk(3, dim=-1)[2]
            of_heads = values.unflatten(-1, (4, 8)).transpose(0, 1)
            norms = (of_heads @ block.attn.c_proj.weight.unflatten(0, (4, 8))).norm(dim=-1)
            weights = skipped(layers["decoder", "self", layer], skip)
            expected = (weights * norms.unsqueeze(1)).sum(dim=-1)[:, skip:].mean(dim=-1)
            found = [row["value_norm"] for row in rows if row["layer"] == layer]
            torch.testing.assert_close(torch.tensor(found).double(), expected.double(), rtol=1e-4, atol=1e-6)


def test_weighted_needs_the_values(attn: Attn, tmp_path: Path) -> None:
    folder = save_model(tmp_path, "BLOOM")
    ended = attn(["heads", "--model", str(folder), "--sentence", SENTENCE, "--weighted"])
    assert ended.code == 2 and ended.err.endswith("exposes only its weights, not its values\n")


def test_every_statistic_can_be_asked_for() -> None:
    row = run("heads", weighted="true", to=["1"], **{"from": ["5"]}).statistics["heads"][0].keys() | {
        "neighbour",
        "high_norm_mass",
        *IN_TIME,
    }
    assert set(HeadStatistic.__args__) == set(row) - {"layer", "module", "head", "kind", "stack", "pattern"}


def test_skipping_every_key_is_refused_in_a_line(attn: Attn) -> None:
    ended = attn(["heads", "--num-tokens", "5", "--skip-sink", "11"])
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "--skip-sink: must be below 11, the number of tokens (got 11)\n"
    assert attn(["heads", "--num-tokens", "5", "--skip-sink", "10"]).code == 0
