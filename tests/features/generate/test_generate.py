"""The text that a model writes, and where it looked, against generate and eager attention in transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    JambaConfig,
    JambaForCausalLM,
)

import attncli
from attncli.core.layer import AttentionLayer, ScoreRules, Visibility
from attncli.errors import UserError
from attncli.features.generate import writing as rows
from attncli.features.generate.writing import WrittenRows
from attncli.models import child, writing
from attncli.records.report import Report
from tests.conftest import Attn, in_turn
from tests.model_folders import GEMMAS, save_gemma, save_tokenizer, save_writer
from tests.running import run
from tests.views.test_views import shown
from tools.tiny_architectures import ARCHITECTURES, GROUPED, VOCABULARY, Architecture

DECODERS = ("GPT-2", "GPT-NeoX", "OPT", "Llama", "Mistral", "Qwen3", "Gemma 2", "GPT-OSS", "Phi-3", "BLOOM")
WITH_ENCODER = ("T5", "BART", "Marian")
SENTENCE = "the cat sat on the street because it was tired"
NEW = 7


class Oracle:
    """A run of transformers: greedy tokens, and the weights of the whole text at once."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        auto = AutoModelForSeq2SeqLM if config.get("is_encoder_decoder") else AutoModelForCausalLM
        self.model = auto.from_pretrained(folder, attn_implementation="eager").eval()
        self.is_cross = bool(self.model.config.is_encoder_decoder)

    @torch.no_grad()
    def written(self, ids: Tensor, count: int = NEW, **options: Any) -> list[int]:
        mask = torch.ones_like(ids)
        options = {"do_sample": False, **options}
        found = self.model.generate(ids, attention_mask=mask, max_new_tokens=count, num_beams=1, **options)
        tokens: list[int] = found[0].tolist()
        return tokens[1:] if self.is_cross else tokens[ids.shape[1] :]

    @torch.no_grad()
    def rows(self, ids: Tensor, written: list[int]) -> Tensor:
        """Return the rows (layer, head, query, key) of the queries that chose each token."""
        given = torch.tensor([written[:-1]], dtype=torch.long)
        if self.is_cross:
            start = torch.cat([torch.tensor([[0]]), given], dim=1)
            out = self.model(input_ids=ids, decoder_input_ids=start, output_attentions=True)
            return torch.stack(out.cross_attentions)[:, 0]
        out = self.model(torch.cat([ids, given], dim=1), output_attentions=True)
        return torch.stack(out.attentions)[:, 0, :, ids.shape[1] - 1 :]


def check_written(report: Report, oracle: "Oracle", ids: Tensor) -> Tensor:
    """Compare the tokens and the rows with those of transformers, and return the rows."""
    written = oracle.written(ids)
    assert ids_of(report, oracle) == written
    rows = oracle.rows(ids, written)
    found = torch.from_numpy(report.tensors["weights"].values)
    torch.testing.assert_close(found, rows, rtol=0, atol=1e-5)
    return rows


def ids_of(report: Report, oracle: Oracle) -> list[int]:
    found: list[int] = oracle.tokenizer.convert_tokens_to_ids(
        [row["token"] for row in report.table("written")]
    )
    return found


@pytest.mark.parametrize(
    ("architecture", "chunk"),
    [*in_turn(DECODERS, (None, 4)), *((name, None) for name in WITH_ENCODER), *in_turn(GEMMAS, (None, 4))],
)
def test_tokens_and_rows_match_transformers(architecture: str, chunk: int | None, tmp_path: Path) -> None:
    """Gemma 3n and 4 have layers that share keys and values; in Gemma 4, these only read the last token."""
    folder = (
        save_gemma(tmp_path, architecture) if architecture in GEMMAS else save_writer(tmp_path, architecture)
    )
    oracle = Oracle(folder)
    given = {"model": str(folder), "sentence": SENTENCE, "max_new_tokens": NEW, "prefill_chunk": chunk}
    report = run("generate", **given, maps="heads", top_k=3)
    ids = oracle.tokenizer(SENTENCE, return_tensors="pt")["input_ids"]
    expected = check_written(report, oracle, ids)
    assert report.tensors["weights"].axes == ("layer", "head", "query", "key")
    check_statistics(report, expected.double().numpy(), ids.shape[1], is_cross=oracle.is_cross)
    assert report.first_query == (0 if oracle.is_cross else ids.shape[1] - 1)


def check_statistics(report: Report, rows: np.ndarray, num_prompt: int, *, is_cross: bool) -> None:
    """Compare every statistic with a loop over every layer, head and query."""
    of_rows = {name: tensor.values for name, tensor in report.tensors_of("rows").items()}
    by_head = {(row["layer"], row["head"]): row for row in report.table("heads")}
    for layer, head in np.ndindex(rows.shape[:2]):
        shares = []
        for query, row in enumerate(rows[layer, head]):
            position = report.first_query + query
            place = (layer, head, query)
            assert of_rows["entropy"][place] == pytest.approx(
                -sum(p * np.log(p) for p in row if p > 0), abs=1e-5
            )
            assert of_rows["sink_mass"][place] == pytest.approx(row[0], abs=1e-5)
            shares.append(row[1 : num_prompt - 1].sum())  # between [CLS] and [SEP]
            assert of_rows["text_mass"][place] == pytest.approx(shares[-1], abs=1e-5)
            assert of_rows["prompt_mass"][place] == pytest.approx(row[:num_prompt].sum(), abs=1e-5)
            order = np.argsort(-row[: position + 1] if not is_cross else -row, kind="stable")[:3]
            weights = of_rows["top_weights"][place]
            np.testing.assert_allclose(
                weights[~np.isnan(weights)], row[order][: (~np.isnan(weights)).sum()], atol=1e-5
            )
            if is_cross:
                assert "distance" not in of_rows and "written_mass" not in of_rows
                continue
            distance = sum(p * (position - key) for key, p in enumerate(row))
            assert of_rows["distance"][place] == pytest.approx(distance, abs=1e-4)
            num_written = position + 1 - num_prompt
            ratio = of_rows["lookback_ratio"][place]
            if num_written:
                a, b = row[:num_prompt].mean(), row[num_prompt : position + 1].mean()
                assert ratio == pytest.approx(a / (a + b), abs=1e-5)
            else:
                assert np.isnan(ratio)
        assert by_head[layer, head]["text_mass"] == pytest.approx(np.mean(shares), abs=1e-5)


@pytest.mark.parametrize(("kind", "expected"), [("default", [4, 4, 4]), ("dynamic", [12])])
def test_long_prompts_are_read_in_chunks_if_the_result_is_the_same(
    kind: str, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "LONG_CHUNK", 4)
    oracle = Oracle(save_writer(tmp_path, "Llama"))
    oracle.model.config.rope_parameters = {"rope_type": kind, "rope_theta": 10_000.0, "factor": 2.0}
    ids = oracle.tokenizer(SENTENCE, return_tensors="pt")["input_ids"]
    written = oracle.written(ids)
    lengths: list[int] = []
    found: list[int] = []

    def count(_model: Any, _inputs: Any, named: dict[str, Any]) -> None:
        lengths.append(named["input_ids"].shape[1])

    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with oracle.model.register_forward_pre_hook(count, with_kwargs=True):
        writing.write(oracle.model, inputs, writing.Decoding(NEW), lambda token, _layers: found.append(token))
    assert found == written
    _by_interface, _eagerly, *pieces = (length for length in lengths if length > 1)
    assert pieces == expected


@pytest.mark.parametrize("num_keys", [5, 11])
def test_similar_layers_are_computed_together(num_keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is the softmax of its layer; sinks, windows and masks stay with their layers."""
    drawn = torch.Generator().manual_seed(num_keys)
    layers = []
    for number in range(7):
        query, key = (torch.randn(1, heads, n, 4, generator=drawn) for heads, n in ((6, 1), (3, num_keys)))
        mask = torch.arange(num_keys).unsqueeze(0) != 2 if number == 3 else None
        seen = Visibility(1, num_keys, True, window=3 if number % 3 == 1 else None, key_mask=mask)
        sink = torch.randn(1, 6, generator=drawn) if number % 2 else None
        layers.append(AttentionLayer(query, key, key, seen, 0.5, ScoreRules(sink=sink)))
    for most in (2**20, 1):
        monkeypatch.setattr(rows, "MOST_STACKED", most)
        for layer, (row, seen_keys) in zip(layers, rows.weight_rows(layers), strict=True):
            scores = 0.5 * (layer.query @ layer.expanded()[0].mT)[0, :, 0]
            scores = scores.masked_fill(~layer.visibility.whole(scores.device)[0, 0], -torch.inf)
            sink = layer.rules.sink
            more = scores if sink is None else torch.cat([scores, sink[0].unsqueeze(-1)], dim=-1)
            torch.testing.assert_close(row, more.softmax(dim=-1)[:, :num_keys], rtol=0, atol=1e-6)
            assert torch.equal(seen_keys, scores[0] > -torch.inf)


def test_sampled_tokens_match_transformers_with_the_same_seed(tmp_path: Path) -> None:
    folder = save_writer(tmp_path, "Llama")
    oracle = Oracle(folder)
    given = {"model": str(folder), "sentence": SENTENCE, "max_new_tokens": NEW, "sampling_temperature": 3.0}
    ids = oracle.tokenizer(SENTENCE, return_tensors="pt")["input_ids"]
    texts = set()
    for seed in range(3):
        torch.manual_seed(seed)
        expected = oracle.written(ids, do_sample=True, temperature=3.0, top_p=0.9, top_k=0)
        before = torch.random.get_rng_state()
        assert ids_of(run("generate", **given, top_p=0.9, seed=seed), oracle) == expected
        assert torch.equal(torch.random.get_rng_state(), before)
        texts.add(tuple(expected))
    assert len(texts) > 1


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("BERT", "looks at later tokens"),
        ("Mamba", "has no attention to show"),
        ("XLM", "attentions.0 has 13 keys for 12 tokens"),
    ],
)
def test_models_that_cannot_write_are_refused(
    architecture: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "vocab_size": VOCABULARY}
    monkeypatch.setitem(ARCHITECTURES, "XLM", Architecture("XLMModel", sizes))
    folder = save_writer(tmp_path, architecture)
    with pytest.raises(UserError, match=reason) as raised:
        run("generate", model=str(folder), sentence=SENTENCE)
    assert len(raised.value.lines) == 1


def test_nan_logits_are_refused(tmp_path: Path) -> None:
    opened = attncli.open_model(save_writer(tmp_path, "Llama"))
    for parameter in opened.whole.get_output_embeddings().parameters():
        parameter.data[3] = torch.nan
    with pytest.raises(UserError, match="it returns NaN: some of its parameters are NaN"):
        attncli.generate(opened, SENTENCE)


def save_with_settings(folder: Path, architecture: str, **settings: Any) -> Path:
    """Save a model with these settings added to its generation_config.json."""
    path = save_writer(folder, architecture) / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return folder


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("Llama", {"repetition_penalty": 2.0}),
        ("Llama", {"begin_suppress_tokens": [*range(4, 50)]}),
        ("Llama", {"eos_token_id": [*range(20, 61)], "min_new_tokens": 5}),
        ("Llama", {"sequence_bias": [[[11], 1e3]]}),
        ("Mistral", {"watermarking_config": {"bias": 1e3}}),
        ("T5", {"forced_bos_token_id": 9}),
        ("BART", {"encoder_no_repeat_ngram_size": 1}),
    ],
    ids=str,
)
def test_generation_settings_that_choose_tokens_apply_and_are_named(
    architecture: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """The tokens match transformers with the same file, and differ from those without the settings."""
    folder = save_with_settings(tmp_path, architecture, **settings)
    oracle = Oracle(folder)
    report = run("generate", model=str(folder), sentence=SENTENCE, max_new_tokens=NEW, maps="heads")
    ids = oracle.tokenizer(SENTENCE, return_tensors="pt")["input_ids"]
    check_written(report, oracle, ids)
    oracle.model.generation_config = GenerationConfig(pad_token_id=0, decoder_start_token_id=0)
    assert oracle.written(ids) != ids_of(report, oracle)
    (name,) = set(settings) - {"eos_token_id"}
    (note,) = (note for note in report.notes if "generation_config.json" in note)
    assert note.startswith(f"The model's generation_config.json affects the choice of tokens: {name}")


HOW_TO_CACHE: list[tuple[dict[str, Any], bool]] = [
    ({"use_cache": False}, False),
    ({"cache_implementation": "static"}, False),
    ({"cache_implementation": "quantized", "cache_config": {"nbits": 4}}, False),
    ({"prefill_chunk_size": 3, "max_length": 5, "max_new_tokens": 4}, False),
    ({"use_mtp": True, "num_assistant_tokens": 3}, False),
]
HOW_TO_SEARCH: list[tuple[dict[str, Any], bool]] = [
    ({"prompt_lookup_num_tokens": 3}, False),
    ({"num_return_sequences": 3, "num_beams": 4}, True),
    ({"return_dict_in_generate": True, "output_attentions": True, "output_logits": True}, False),
    ({"penalty_alpha": 0.6, "top_k": 4}, True),
    ({"dola_layers": "low"}, True),
    ({"guidance_scale": 3.0}, True),
    ({"token_healing": True}, True),
    ({"max_time": 1e-9}, True),
    ({"do_sample": True, "temperature": 9.0, "top_k": 3, "min_p": 0.5}, False),
]
"""Caches are of each architecture's own kind, a search is not."""


@pytest.mark.parametrize(
    ("one", "architecture"),
    [
        *in_turn(HOW_TO_CACHE, ("Llama", "Mistral", "Gemma 2", "GPT-OSS", "T5")),
        *in_turn(HOW_TO_SEARCH, ("Llama", "T5")),
    ],
    ids=str,
)
def test_generation_settings_for_search_and_caches_are_ignored(
    architecture: str, one: tuple[dict[str, Any], bool], tmp_path: Path
) -> None:
    settings, is_named = one
    folder = save_with_settings(tmp_path, architecture, **settings)
    oracle = Oracle(folder)
    oracle.model.generation_config = GenerationConfig(pad_token_id=0, decoder_start_token_id=0)
    long = f"{SENTENCE} and the cat walks"
    report = run("generate", model=str(folder), sentence=long, max_new_tokens=NEW, maps="heads")
    check_written(report, oracle, oracle.tokenizer(long, return_tensors="pt")["input_ids"])
    left_out = [
        note for note in report.notes if note.startswith("These settings in the model's generation_config")
    ]
    assert len(left_out) == is_named and not any("choice of tokens" in note for note in report.notes)


def test_the_settings_of_a_loaded_model_are_left_unchanged(tmp_path: Path) -> None:
    oracle = Oracle(save_with_settings(tmp_path, "Llama", repetition_penalty=1.5, num_beams=3))
    before = oracle.model.generation_config
    inputs = dict(oracle.tokenizer(SENTENCE, return_tensors="pt"))
    inputs.pop("token_type_ids", None)
    writing.write(oracle.model, inputs, writing.Decoding(NEW), lambda _token, _layers: None)
    assert oracle.model.generation_config is before
    assert (before.repetition_penalty, before.num_beams, before.max_new_tokens) == (1.5, 3, None)


@pytest.mark.parametrize("ends", [{"stop_strings": ["{}"]}, {"eos_token_id": [2, None]}], ids=str)
def test_writing_ends_where_the_generation_config_says(ends: dict[str, Any], tmp_path: Path) -> None:
    oracle = Oracle(save_writer(tmp_path / "plain", "Llama"))
    written = oracle.written(oracle.tokenizer(SENTENCE, return_tensors="pt")["input_ids"])
    last = next(one for number, one in enumerate(written) if number > 1 and one not in written[:number])
    word = oracle.tokenizer.convert_ids_to_tokens(last)
    ends = {"stop_strings": [word]} if "stop_strings" in ends else {"eos_token_id": [2, last]}
    folder = save_with_settings(tmp_path / "ends", "Llama", **ends)
    report = run("generate", model=str(folder), sentence=SENTENCE, max_new_tokens=NEW)
    assert ids_of(report, oracle) == written[: written.index(last) + 1] != written


def test_prefill_chunks_are_refused_if_they_change_the_result(attn: Attn, tmp_path: Path) -> None:
    """The state layers of Jamba start again with each chunk, so it writes other tokens."""
    sizes = {**GROUPED, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2}
    torch.manual_seed(7)
    model = JambaForCausalLM(JambaConfig(**sizes, use_mamba_kernels=False))
    model.generation_config = GenerationConfig(pad_token_id=0)
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    command = ["generate", "--model", str(tmp_path), "--max-new-tokens", "2", SENTENCE]
    assert attn(command).code == 0
    ended = attn([*command, "--prefill-chunk", "4"])
    line = "--prefill-chunk: jamba may give different results if it reads in chunks: omit --prefill-chunk\n"
    assert (ended.code, ended.out, ended.err) == (2, "", line)


def test_the_shipped_model_looks_at_the_copied_token(attn: Attn) -> None:
    """The shipped model copies: it looks at the token that followed the first copy."""
    ended = attn(["generate"])
    assert (ended.code, ended.err) == (0, "")
    assert "\nwrote: on heads copy; induction\n" in ended.out and "29 i   o " in ended.out
    of_head = run("generate", layer=1, head=2)
    keys = of_head.tensors_of("rows")["top_keys"]
    assert keys.axes == ("query", "rank")
    hits = [
        of_head.tokens[key] == row["token"]
        for key, row in zip(keys.values[:, 0], of_head.table("written"), strict=True)
    ]
    assert sum(hits) > 20


def test_control_c_keeps_the_text_so_far(attn: Attn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    take = WrittenRows.take

    def interrupted(self: WrittenRows, *arguments: Any) -> None:
        take(self, *arguments)
        if len(self.tokens) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(WrittenRows, "take", interrupted)
    path = tmp_path / "report.json"
    assert attn(["generate", "-o", str(path)]).code == 130
    report = json.loads(path.read_text())
    assert report["is_unfinished"] and report["statistics"]["writing"]["new_tokens"] == 3
    assert "".join(row["token"] for row in report["statistics"]["written"]) == "on▁"
    assert attn(["show", str(path)]).code == 0
    with pytest.raises(KeyboardInterrupt):  # of a batch, or in Python, nobody asked for a part
        run("generate")


def test_the_error_of_a_long_prompt_names_the_limit(attn: Attn) -> None:
    long = ["generate", "x" * 200]
    refused = attn(long)
    assert refused.code == 2
    expected = "must be at most 105 tokens for tiny-induction with 24 new tokens (got 201)"
    assert refused.err == f"TEXT: {expected}: use --truncate to cut the text\n"
    cut = attn([*long, "--truncate", "--format", "json"])
    assert json.loads(cut.out)["statistics"]["writing"]["prompt_tokens"] == 105
    assert "--max-new-tokens: must be at most 128" in attn(["generate", "--max-new-tokens", "200"]).err


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--head", "1"], "--head: needs --layer"),
        (["--layer", "9"], "--layer: must be from 0 to 1 (got 9)"),
        (["--head", "0:4"], "--head: must be from 0:0 to 0:3 (got 0:4)"),
        (["--needle", "nothing"], "--needle: must occur verbatim in the prompt (got nothing)"),
        (["--needle", "3:99"], "--needle: must end at or before 30, the number of tokens (got 3:99)"),
        (["--chat"], "--chat: tiny-induction has no chat template: omit --chat"),
        (["--lengths", "20"], "--lengths: needs --needle-depth"),
        (["--answer", "on", "--max-new-tokens", "5"], "--max-new-tokens: cannot be combined with --answer"),
        (
            ["--lengths", "500,2000"],
            "--lengths: must be one number: for several, use attn batch with a file that has "
            "sweep: {lengths: [500, 2000]} (got 500,2000)",
        ),
    ],
)
def test_errors_are_one_line(attn: Attn, flags: list[str], line: str) -> None:
    ended = attn(["generate", *flags])
    assert (ended.code, ended.err.splitlines()[0]) == (2, line)


@pytest.mark.parametrize("needle", ["copy; ind", "17:26"])
def test_retrieval_scores_match_a_naive_loop(needle: str) -> None:
    report = run("generate", needle=needle, maps="heads", sort="retrieval")
    ids = [*report.tokens]
    weights = report.tensors["weights"].values
    places = range(17, 26)
    written = [row["token"] for row in report.table("written")]
    copied = [query for query, token in enumerate(written) if token in {ids[place] for place in places}]
    assert report.numbers("needle")["copied"] == len(copied) > 0
    for row in report.table("heads"):
        rows = weights[row["layer"], row["head"]]
        hits = [
            query
            for query in copied
            if (key := int(rows[query].argmax())) in places and ids[key] == written[query]
        ]
        assert row["retrieval"] == pytest.approx(len(hits) / len(copied))
        assert row["needle_mass"] == pytest.approx(rows[:, 17:26].sum(axis=1).mean(), abs=1e-6)
    scores = [row["retrieval"] for row in report.table("heads")]
    assert scores == sorted(scores, reverse=True) and scores[0] >= 0.5
    best = max(report.table("heads"), key=lambda row: (row["retrieval"], row["needle_mass"]))
    for query, row in enumerate(report.table("written")):
        assert row["head"] == f"{best['layer']}:{best['head']}"
        mine = weights[best["layer"], best["head"]][query]
        assert row["first_key"] == pytest.approx(mine[0], abs=1e-6)
        assert row["needle_mass"] == pytest.approx(mine[17:26].sum(), abs=1e-6)
        assert row["weights"] == pytest.approx(np.sort(mine[1:])[:-4:-1], abs=1e-6)
        assert [mine[key] for key in row["keys"]] == pytest.approx(row["weights"], abs=1e-6)
    assert np.mean([row["needle_mass"] for row in report.table("written")]) == pytest.approx(
        best["needle_mass"], abs=1e-6
    )
    title = f"the strongest keys of the best head, {best['layer']}:{best['head']} ("
    assert title in shown("table", [report], width=100)


def test_max_new_tokens_leave_room_for_the_prompt(tmp_path: Path) -> None:
    """The last written token is not read."""
    folder = save_writer(tmp_path, "Llama")
    change(folder / "config.json", max_position_embeddings=17)
    run("generate", model=str(folder), sentence="w3", max_new_tokens=15)
    with pytest.raises(UserError, match=r"sentence: must be at most 2 tokens .* with 16 new tokens"):
        run("generate", model=str(folder), sentence="w3", max_new_tokens=16)
    with pytest.raises(UserError, match=r"max_new_tokens: must be at most 17 .*\(got 18\)"):
        run("generate", model=str(folder), sentence="w3", max_new_tokens=18)


@pytest.mark.parametrize(
    ("side", "place", "is_kept"),
    [
        ("left", 24, False), ("left", 25, True), ("left", 38, True),
        ("right", 13, True), ("right", 14, False),
    ],
)  # fmt: skip
def test_a_needle_is_found_after_truncation(side: str, place: int, is_kept: bool, tmp_path: Path) -> None:
    folder = save_writer(tmp_path, "Llama")
    change(folder / "config.json", max_position_embeddings=17)
    change(folder / "tokenizer_config.json", truncation_side=side)
    names = [f"w{i}" for i in range(40)]
    sentence, needle = " ".join(names), " ".join(names[place : place + 2])
    oracle = AutoTokenizer.from_pretrained(folder)
    kept = oracle.convert_ids_to_tokens(oracle(sentence, truncation=True, max_length=17)["input_ids"])
    settings = {"sentence": sentence, "truncate": True, "needle": needle, "max_new_tokens": 1}
    if not is_kept:
        with pytest.raises(UserError, match="is in the part of the text that was cut off"):
            run("generate", model=str(folder), **settings)
        return
    report = run("generate", model=str(folder), **settings)
    assert list(report.tokens) == kept
    (note,) = (note for note in report.notes if note.startswith("The needle is at "))
    first, last = map(int, note.split()[4].rstrip(";").split("-"))
    assert kept[first : last + 1] == needle.split()
    which = "first" if side == "left" else "last"
    assert f"The {which} 25 tokens of the text are left out: the model reads 17." in report.notes


def change(file: Path, **settings: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


TEMPLATES = {
    "{{ raise_exception('no system\nmessage') }}": "no system message",
    "{% for m in %}": "Expected an expression, got 'end of statement block'",
    "{{ ''.__class__.__mro__ }}": "access to attribute '__class__' of 'str' object is unsafe.",
    "{{ 1 + 'x' }}": "unsupported operand type(s) for +: 'int' and 'str'",
    "{{ 'x' * 10**10 }}": "it needs more than 537 MB of memory",
    "{{ 'x' * 2 * 10**6 }}": "it turns 7 characters into 2,000,000",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "maximum recursion depth exceeded",
    "{% for i in range(9**5) %}{% for j in range(9**5) %}{% endfor %}{% endfor %}": "it takes more than 2 s",
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_template_that_fails_is_one_line(
    template: str, attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "MOST_SECONDS", 2.0)
    folder = save_writer(tmp_path, "GPT-2")
    (folder / "chat_template.jinja").write_text(template)
    ended = attn(["generate", "--model", str(folder), "--sentence", "the cat", "--chat"])
    (line,) = ended.err.splitlines()
    assert ended.code == 2
    assert line.startswith(f"--chat: the chat template of {folder.name} fails: {TEMPLATES[template]}")


def test_a_chat_template_matches_transformers(tmp_path: Path) -> None:
    folder = save_writer(tmp_path, "GPT-2")
    template = "the {% for m in messages %}{{ m['content'] | tojson }} {{ m.role }}{% endfor %} street"
    (folder / "chat_template.jinja").write_text(template)
    message = [{"role": "user", "content": SENTENCE}]
    expected = AutoTokenizer.from_pretrained(folder).apply_chat_template(message, tokenize=True)["input_ids"]
    report = run("generate", model=str(folder), sentence=SENTENCE, chat=True, max_new_tokens=1)
    assert AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids([*report.tokens]) == expected


def test_a_needle_in_a_chat_is_found_in_the_message(tmp_path: Path) -> None:
    folder = save_writer(tmp_path, "GPT-2")
    template = "{% for m in messages %}the user walks: {{ m.content }} the user{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    settings = {"model": str(folder), "sentence": "on the street the user", "chat": True, "max_new_tokens": 1}
    report = run("generate", **settings, needle="the user")
    assert [*report.tokens][:7] == ["the", "[UNK]", "walks", "[UNK]", "on", "the", "street"]
    assert "The needle is at 7-8; 0 of the new tokens are in the needle." in report.notes
    with pytest.raises(UserError, match=r"^needle: must occur verbatim in the prompt \(got walks\)$"):
        run("generate", **settings, needle="walks")
    (folder / "chat_template.jinja").write_text("the cat walks")
    with pytest.raises(
        UserError, match=r"^needle: the chat template of .* use token positions, such as 12:20$"
    ):
        run("generate", **settings, needle="cat")


@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_a_needle_is_inserted_between_sentences(depth: float, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a b c d. e f g h. i j k l. m n o p.")
    file = str(tmp_path / "text.txt")
    report = run("generate", file=file, needle="x y z", needle_depth=depth, lengths=30, max_new_tokens=1)
    text = "".join(report.tokens).replace("▁", " ").removeprefix("<bos>")
    expected = {
        0.0: "x y z a b c d. e f g h. i j k l",
        0.5: "a b c d. x y z e f g h. i j k l",
        1.0: "a b c d. e f g h. i j k l x y z",
    }
    assert text == expected[depth]
    assert report.numbers("needle")["tokens"] == 5


def test_a_batch_sweeps_needle_depth_and_length(attn: Attn, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one two three four. " * 5)
    (tmp_path / "sweep.yaml").write_text(
        "experiment: generate\nfile: text.txt\nneedle: xq7\nquestion: four. x\nmax_new_tokens: 2\n"
        "sweep: {needle_depth: [0, 1], lengths: [20, 40, 60]}\n"
    )
    store = str(tmp_path / "runs.db")
    assert attn(["batch", str(tmp_path / "sweep.yaml"), "-o", store]).code == 0
    asked = ["results", store, "--statistic", "needle.found"]
    asked += ["--group-by", "needle_depth", "--group-by", "lengths"]
    drawn = attn([*asked, "--format", "heatmap"]).out
    assert "needle.found by needle_depth and lengths (row × column)" in drawn
    assert "0 0.0" in drawn and "1 1.0" in drawn and "40" in drawn
    rows = json.loads(attn([*asked, "--format", "json"]).out)
    assert len(rows["statistics"]["summary"]) == 6 and not rows["tensors"]


@pytest.mark.parametrize(
    ("maps", "place"),
    [("none", ["--layer", "1"]), ("mean", []), ("heads", []), ("mean", ["--head", "1:2"])],
)
def test_every_row_of_statistics_is_shown_once(attn: Attn, maps: str, place: list[str]) -> None:
    """Rows of statistics stand beside the weights of the same heads; a mean over the heads stands alone."""
    chosen = {flag.removeprefix("--"): value for flag, value in zip(place[::2], place[1::2], strict=True)}
    report = run("generate", max_new_tokens=2, **chosen)
    ended = attn(["generate", "--max-new-tokens", "2", "--maps", maps, "--show", "all", *place])
    assert (ended.code, ended.err) == (0, "")
    lines = [line.split() for line in ended.out.splitlines()]
    for entropies in report.tensors_of("rows")["entropy"].values.reshape(-1, 2):
        for query, token, entropy in zip(("29", "30"), "io", entropies, strict=True):
            cell = f"{entropy:.4f}"
            assert sum(line[:2] == [query, token] and cell in line for line in lines) == 1, cell


@pytest.mark.parametrize("architecture", ("GPT-2", "GPT-OSS", "BLOOM", "T5"))
def test_rows_of_a_read_answer_match_transformers(architecture: str, tmp_path: Path) -> None:
    folder, oracle = save_writer(tmp_path, architecture), Oracle(tmp_path)
    answer = "was tired on the street w30"
    (tmp_path / "answer.txt").write_text(f"{answer}\n")
    ids = oracle.tokenizer(SENTENCE, return_tensors="pt")["input_ids"]
    expected = oracle.rows(ids, oracle.tokenizer(answer, add_special_tokens=False)["input_ids"])
    for given in (answer, str(tmp_path / "answer.txt"))[: 2 if architecture == "GPT-2" else 1]:
        settings = {"model": str(folder), "sentence": SENTENCE, "answer": given, "maps": "heads"}
        report = run("generate", **settings)
        found = report.tensors["weights"].values
        np.testing.assert_allclose(found, expected.numpy(), atol=2e-5)
        assert report.written == answer
        assert report.numbers("writing")["new_tokens"] == expected.shape[2] == 6
        assert report.numbers("writing")["log_probability"] < 0
