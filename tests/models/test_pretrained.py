"""What a model reads: its tokens as they are, never padded or cut."""

from pathlib import Path

import pytest
import torch

from attncli.errors import UserError
from attncli.models.loading import kept_pretrained, load_pretrained
from attncli.models.pretrained import Pretrained, repeated_probe
from tests.model_folders import save_model


def load(folder: Path) -> Pretrained:
    return load_pretrained(str(folder), allow_download=False, device="cpu")


def test_tokens_are_neither_padded_nor_cut(tmp_path: Path) -> None:
    pretrained = load(save_model(tmp_path, "BERT", padded=6))
    assert pretrained.read("the cat", "sentence").tokens == ("[CLS]", "the", "cat", "[SEP]")
    assert len(pretrained.read("the cat walks on the street", "sentence").tokens) == 8
    assert pretrained.read("ß", "sentence").tokens == ("[CLS]", "[UNK]", "[SEP]")


@pytest.mark.parametrize(
    ("architecture", "most"), [("BERT", 512), ("RoBERTa", 510), ("OPT", 2048), ("T5", None)]
)
def test_positions_set_the_limit(tmp_path: Path, architecture: str, most: int | None) -> None:
    pretrained = load(save_model(tmp_path, architecture))
    assert pretrained.most_tokens() == most
    if most is not None:
        with pytest.raises(UserError, match=f"sentence: must be at most {most} tokens"):
            pretrained.read("the " * most, "sentence")
        ids = torch.full((1, most), 5)
        with torch.no_grad():
            pretrained.model(ids)
            with pytest.raises((IndexError, RuntimeError)):
                pretrained.model(torch.full((1, most + 1), 5))


def test_a_decoder_reads_the_text_after_its_start(tmp_path: Path) -> None:
    pretrained = load(save_model(tmp_path, "BART"))
    shifted = pretrained.shifted_right(pretrained.read("the cat", "sentence"))
    assert shifted.tokens == ("[PAD]", "[CLS]", "the", "cat")
    assert shifted.ids.tolist() == [0, 2, 4, 5]


def test_the_probe_repeats_random_tokens(tmp_path: Path) -> None:
    pretrained = load(save_model(tmp_path, "BERT"))
    probe = repeated_probe(pretrained, 7, torch.Generator().manual_seed(1))
    again = repeated_probe(pretrained, 7, torch.Generator().manual_seed(1))
    ids = probe.ids.tolist()
    assert ids[0] == 2 and ids[1:8] == ids[8:] and len(set(ids[1:8])) == 7
    assert not set(ids[1:]) & {0, 1, 2, 3}, "no special token"
    assert ids == again.ids.tolist()
    with pytest.raises(UserError, match="num_tokens: must be at most 57"):
        repeated_probe(pretrained, 58, torch.Generator())


def test_the_model_of_the_last_run_is_kept_until_its_files_change(tmp_path: Path) -> None:
    one, other = save_model(tmp_path / "one", "BERT"), save_model(tmp_path / "other", "BERT")

    def kept(folder: Path) -> Pretrained:
        return kept_pretrained(str(folder), allow_download=False, device="cpu")

    first = kept(one)
    assert kept(one) is first
    assert kept(other) is not first
    again = kept(one)
    assert again is not first, "one model at a time"
    config = one / "config.json"
    config.write_text(config.read_text() + " ")
    assert kept(one) is not again
    (one / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="is not a safetensors file, or is cut off"):
        kept(one)
