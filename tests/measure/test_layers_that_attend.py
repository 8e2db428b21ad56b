"""The layer and stack that are shown by default, and the output of a layer, as the model computes it."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from attncli.errors import UserError
from tests.running import run
from tools.architecture_sweep.folders import save_model, text_of

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own


def test_the_first_layer_that_attends_is_the_default(tmp_path: Path) -> None:
    save_model("jamba", tmp_path)
    report = run("self", model=str(tmp_path), sentence=text_of(5))
    assert report.spec["layer"] > 0 and f"head {report.spec['layer']}:0" in report.notes[0]
    with pytest.raises(UserError, match=rf"head: must be from {report.spec['layer']}:0 .* \(got 0:0\)"):
        run("self", model=str(tmp_path), sentence=text_of(5), layer="0")


@pytest.mark.parametrize(("name", "module"), [("bitnet", "layers.1.self_attn"), ("bert", "")])
def test_the_output_equals_the_models(tmp_path: Path, name: str, module: str) -> None:
    """BitNet has a norm between the heads and W_O; in BERT, W_O is outside the attention module."""
    save_model(name, tmp_path)
    outputs = []
    model = AutoModel.from_pretrained(tmp_path, attn_implementation="eager")
    part = model.get_submodule(module or "encoder.layer.1.attention.output.dense")
    part.register_forward_hook(
        lambda _module, _inputs, output: outputs.append(output[0] if module else output)
    )
    with torch.no_grad():
        model(torch.tensor([AutoTokenizer.from_pretrained(tmp_path)(text_of(7))["input_ids"]]))
    report = run("multihead", model=str(tmp_path), sentence=text_of(7), layer="1")
    shown = torch.tensor(report.tensors["output"].values)
    torch.testing.assert_close(shown, outputs[0][0], rtol=1e-4, atol=1e-5)


def test_minus_one_means_no_limit(tmp_path: Path) -> None:
    save_model("xlnet", tmp_path)
    assert len(run("heads", model=str(tmp_path), sentence=text_of(11)).tokens) == 11


@pytest.mark.parametrize("name", ["bitnet", "qwen3_next"])
def test_weighted_is_refused_if_heads_change_before_w_o(tmp_path: Path, name: str) -> None:
    save_model(name, tmp_path)
    with pytest.raises(UserError, match=r"weighted: .*self_attn of .* changes the heads before W_O"):
        run("heads", model=str(tmp_path), sentence=text_of(7), weighted="true")
    assert run("heads", model=str(tmp_path), sentence=text_of(7)).statistics["heads"]
