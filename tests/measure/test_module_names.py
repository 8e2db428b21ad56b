"""In every result, a module has its name in the model without its head; longer names still open."""

import json
from pathlib import Path

import pytest

from attncli.features.ablate.door import ablate
from attncli.features.generate.door import generate
from attncli.features.heads.door import survey
from attncli.features.why.door import why
from attncli.measure.library import layers
from attncli.models.loading import open_model
from tests.conftest import Attn
from tests.model_folders import save_writer

TEXT = "the cat walks on the street and the cat"


@pytest.mark.parametrize(
    ("architecture", "modules"),
    [
        ("GPT-2", {"h.0.attn", "h.1.attn"}),
        ("Llama", {"layers.0.self_attn", "layers.1.self_attn"}),
        ("BART", {"decoder.layers.0.encoder_attn", "decoder.layers.1.encoder_attn"}),
        ("T5", {"decoder.block.0.layer.1.EncDecAttention", "decoder.block.1.layer.1.EncDecAttention"}),
    ],
)
def test_every_result_has_the_same_module_names(tmp_path: Path, architecture: str, modules: set[str]) -> None:
    model = open_model(str(save_writer(tmp_path, architecture)))
    captured = {layer.module for layer in layers(model, TEXT)}
    surveyed = {row.module for row in survey(model, TEXT).heads}
    removed = {row.module for row in ablate(model, TEXT).heads}
    written = {row.module for row in generate(model, TEXT, max_new_tokens=1).heads}
    assert modules == written <= captured == surveyed == removed
    if not model.has_decoder:
        assert {row.module for row in why(model, TEXT).heads} == modules


def test_reports_with_longer_module_names_open(
    attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert attn(["ablate", "-o", "new.json"]).code == 0
    text = Path("new.json").read_text()
    Path("old.json").write_text(text.replace('"h.', '"transformer.h.'))
    heads = json.loads(Path("old.json").read_text())["statistics"]["heads"]
    assert heads[0]["module"].startswith("transformer.h.")
    assert attn(["show", "old.json"]).out == attn(["show", "new.json"]).out
    differences = json.loads(attn(["diff", "old.json", "new.json", "--format", "json"]).out)["statistics"]
    same = json.loads(attn(["diff", "new.json", "new.json", "--format", "json"]).out)["statistics"]
    assert differences == same
