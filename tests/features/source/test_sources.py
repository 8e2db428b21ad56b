"""Sources of an answer: weights and removals compared with transformers; the Lasso and its conditions."""

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, DynamicCache

import attncli
from attncli.errors import UserError
from attncli.features.source.kept_heads import cache_heads, cached_heads
from attncli.features.source.results import ChosenHead, RetrievingHead, RetrievingHeads
from attncli.features.source.retrieving_heads import NUM_SENTENCES, synthetic_contexts
from attncli.features.source.settings import SourceSpec
from attncli.features.source.sources import (
    SourceWeights,
    answer_sources,
    lasso,
    lasso_effects,
    likeliest,
    written_answer,
)
from attncli.models.answers import given_answer
from attncli.models.loading import open_model
from attncli.models.packed_prompts import select_keys
from attncli.models.pretrained import Pretrained
from attncli.models.replay import Replay
from attncli.models.source_removals import SourcesTakenOut, sampled_masks
from attncli.models.source_texts import (
    Passage,
    SourcedReading,
    SourcedText,
    chat_text,
    encoded_sources,
    marked_text,
    read_sourced,
    sourced_text,
    split_text,
    with_documents,
)
from attncli.models.targets import Target
from attncli.models.writing import Decoding
from attncli.records.report import plain
from tests.conftest import Attn
from tests.features.why.test_why import PRE_NORM, save
from tests.model_folders import save_model, save_writer
from tools.tiny_architectures import GROUPED, HIDDEN

ARCHITECTURES = ("GPT-2", "Llama", "Mistral", "Gemma 2", "GPT-OSS", "BLOOM", "T5", "BART")
PARTS = ("the cat walks", "die katze sat on the street", "it was tired", "w20 w21 w22", "the street was w23")
QUESTION = "because it"
ANSWER = "was tired on the street w30 w31"
TOLERANCE = 2e-5


def sourced_reading(pretrained: Pretrained, parts: tuple[str, ...] = PARTS) -> SourcedReading:
    documents = [(f"{number}.md", part) for number, part in enumerate(parts)]
    return read_sourced(pretrained, with_documents(documents, QUESTION))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small Llama."""
    return save_writer(tmp_path_factory.mktemp("llama"), "Llama")


@pytest.fixture
def llama(folder: Path) -> Pretrained:
    return open_model(folder)


class Oracle:
    """The log-probabilities of an answer and its weights on the prompt, by transformers on the whole text."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        is_pair = json.loads((folder / "config.json").read_text()).get("is_encoder_decoder")
        auto: Any = AutoModelForSeq2SeqLM if is_pair else AutoModelForCausalLM
        self.is_pair = bool(is_pair)
        self.model = auto.from_pretrained(folder, attn_implementation="eager").eval()

    @torch.no_grad()
    def read(self, prompt: str, answer: list[int]) -> tuple[Tensor, Tensor]:
        ids = self.tokenizer(prompt, return_tensors="pt")["input_ids"]
        given, count = torch.tensor([answer[:-1]], dtype=torch.long), ids.shape[1]
        if self.is_pair:
            start = torch.cat([torch.tensor([[0]]), given], dim=1)
            out = self.model(input_ids=ids, decoder_input_ids=start, output_attentions=True)
            logits, weights = out.logits[0], torch.stack(out.cross_attentions)[:, 0]
        else:
            out = self.model(torch.cat([ids, given], dim=1), output_attentions=True)
            logits = out.logits[0, count - 1 :]
            weights = torch.stack(out.attentions)[:, 0, :, count - 1 :, :count]
        found = logits.log_softmax(dim=-1).gather(-1, torch.tensor(answer).unsqueeze(-1))[:, 0]
        return found, weights


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_and_losses_agree_with_transformers(architecture: str, tmp_path: Path) -> None:
    pretrained, oracle = open_model(save_writer(tmp_path, architecture)), Oracle(tmp_path)
    reading = sourced_reading(pretrained)
    answer = given_answer(pretrained, ANSWER, reading.prompt.ids)
    found = answer_sources(pretrained, reading, answer, method="removal", heads=("0:1", "1:0"))
    prompt = "\n\n".join((*PARTS, QUESTION))
    expected, weights = oracle.read(prompt, answer.ids)
    places, start = [], 1  # after [CLS], the first token
    for part in PARTS:
        places.append(range(start, start + len(part.split())))
        start += len(part.split())
    rows = {row["source"]: row for row in found.sources}
    for number, of_source in enumerate(places, start=1):
        on_source = weights[..., list(of_source)].sum(dim=-1)
        row = rows[number]
        assert row["tokens"] == len(of_source) and row["first_token"] == of_source.start
        assert row["all_heads"] == pytest.approx(float(on_source.mean()), abs=TOLERANCE)
        named = (on_source[0, 1] + on_source[1, 0]) / 2
        assert row["retrieving_heads"] == pytest.approx(float(named.mean()), abs=TOLERANCE)
        assert torch.allclose(torch.from_numpy(found.weights)[:, number - 1], named, atol=TOLERANCE)
        others = [part for place, part in enumerate(PARTS, start=1) if place != number]
        without, _ = oracle.read("\n\n".join((*others, QUESTION)), answer.ids)
        lost = float((expected - without).sum())
        assert row["lost"] == pytest.approx(lost, abs=2e-4)
    assert [row["lost_rank"] for row in found.sources] == [1, 2, 3, 4, 5]
    lost_of = [row["lost"] for row in found.sources]
    assert lost_of == sorted(lost_of, reverse=True)
    assert found.log_probability == pytest.approx(float(expected.sum()), abs=2e-4)


@pytest.mark.parametrize("architecture", ("Llama", "BART"))
def test_a_written_answer_gives_the_same_numbers_when_read(architecture: str, tmp_path: Path) -> None:
    pretrained = open_model(save_writer(tmp_path, architecture))
    reading = sourced_reading(pretrained)
    written = written_answer(pretrained, reading, Decoding(6))
    found = answer_sources(pretrained, reading, written, method="removal")
    again = answer_sources(
        pretrained, reading, given_answer(pretrained, found.answer, reading.prompt.ids), method="removal"
    )
    assert again.ids == found.ids
    np.testing.assert_allclose(again.weights, found.weights, atol=1e-6)
    for one, other in zip(found.sources, again.sources, strict=True):
        assert one["source"] == other["source"] and one["lost"] == pytest.approx(other["lost"], abs=1e-4)


def test_a_prompt_read_in_pieces_gives_the_same_numbers(
    llama: Pretrained, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = sourced_reading(llama)
    answer = given_answer(llama, ANSWER, reading.prompt.ids)
    whole = answer_sources(llama, reading, answer, method="removal")
    monkeypatch.setattr("attncli.models.replay.LONG_CHUNK", 3)
    pieces = answer_sources(llama, reading, answer, method="removal")
    for one, other in zip(whole.sources, pieces.sources, strict=True):
        assert one["lost"] == pytest.approx(other["lost"], abs=1e-4)
        assert one["all_heads"] == pytest.approx(other["all_heads"], abs=1e-6)


TREES = {
    **{name: PRE_NORM[name] for name in ("LlamaForCausalLM", "GPT2LMHeadModel", "OPTForCausalLM")},
    "MistralForCausalLM": {**GROUPED, "sliding_window": 5},
    "Gemma2ForCausalLM": {**GROUPED, "query_pre_attn_scalar": 4, "sliding_window": 7},
    "GptOssForCausalLM": {**GROUPED, "num_local_experts": 5, "sliding_window": 5},
    "BloomForCausalLM": {**HIDDEN, "n_head": 4, "n_layer": 2},
}


@pytest.mark.parametrize("name", TREES)
def test_prompts_read_as_a_tree_agree_with_single_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packs are so small that texts span two of them; models with distance biases do not use trees."""
    monkeypatch.setattr("attncli.models.packed_prompts.PACKED_TOKENS", 19)
    save(tmp_path, name, dict(TREES[name]))
    pretrained = open_model(tmp_path)
    generator = torch.Generator().manual_seed(7)
    words = torch.randint(3, 40, (11, 3), generator=generator)
    masks = sampled_masks(23, len(words), seed=2)
    texts = [torch.cat([torch.tensor([1]), words[mask].flatten(), torch.tensor([5, 9])]) for mask in masks]
    texts.sort(key=lambda text: text.tolist())
    answer = Target([12, 9, 3])
    whole = torch.cat([torch.tensor([1]), words.flatten(), torch.tensor([5, 9])])
    replay = Replay(pretrained.whole, whole, answer)
    replay.layers()
    calls: list[int] = []

    def counted(cache: DynamicCache, columns: Tensor) -> DynamicCache:
        calls.append(len(columns))
        return select_keys(cache, columns)

    monkeypatch.setattr("attncli.models.replay.select_keys", counted)
    together = [*replay.each_log_probabilities(texts)]
    assert len(together) == len(texts)
    assert replay._may_pack == (name != "BloomForCausalLM") and (len(calls) > 5 or not replay._may_pack)
    for text, found in zip(texts, together, strict=True):
        fresh = Replay(pretrained.whole, text, answer).log_probabilities(text)
        assert torch.allclose(fresh, found, atol=1e-5)


def test_the_lasso_meets_its_conditions() -> None:
    """At the minimum, the gradient equals the penalty for nonzero weights and is no larger for the others."""
    generator = torch.Generator().manual_seed(5)
    columns = torch.randn(40, 11, generator=generator, dtype=torch.float64)
    columns -= columns.mean(dim=0)
    target = columns[:, 0] * 3 - columns[:, 4] + torch.randn(40, generator=generator, dtype=torch.float64)
    found = lasso(columns, target, 0.3)
    gradient = columns.mT @ (target - target.mean() - columns @ found) / len(target)
    kept = found != 0
    assert 0 < int(kept.sum()) < len(found)
    assert torch.allclose(gradient[kept], 0.3 * found[kept].sign(), atol=1e-9)
    assert (gradient[~kept].abs() <= 0.3 + 1e-9).all()


def test_only_a_source_that_matters_has_an_effect() -> None:
    masks = sampled_masks(64, 7, seed=1)
    log_probabilities = torch.where(masks[:, 3], -0.5, -6.0)
    effects = lasso_effects(masks, log_probabilities, 5)
    assert int(effects.argmax()) == 3 and int((effects != 0).sum()) == 1


TEXT = 'Ann came. "Did she?" Yes!\nBo left\n\nAnn: hi\n there\nBo Lee: bye'


@pytest.mark.parametrize(
    ("split", "parts"),
    [
        ("sentence", ["Ann came.", '"Did she?"', "Yes!", "Bo left", "Ann: hi", "there", "Bo Lee: bye"]),
        ("line", ['Ann came. "Did she?" Yes!', "Bo left", "Ann: hi", "there", "Bo Lee: bye"]),
        ("paragraph", ['Ann came. "Did she?" Yes!\nBo left', "Ann: hi\n there\nBo Lee: bye"]),
        ("turn", ['Ann came. "Did she?" Yes!\nBo left', "Ann: hi\n there", "Bo Lee: bye"]),
    ],
)
def test_a_text_is_split_into_its_parts(split: Any, parts: list[str]) -> None:
    found = split_text(TEXT, split, question="Who?")
    assert found.texts() == parts
    assert [source.name for source in found.sources] == [f"{split}{i + 1}" for i in range(len(parts))]
    assert found.text == f"{TEXT}\n\nWho?"


@pytest.mark.parametrize(
    ("text", "asking"),
    [
        ("A came. B left. In which city? Answer: C works in", "In which city? Answer: C works in"),
        ('A came. B left. "Who came?"', '"Who came?"'),
        ("A came. B left! A", "A"),
        ("Context:\nA came\nB left\nQuestion: who?\nAnswer:", "Question: who?\nAnswer:"),
        ("Who came? A came. B left.", ""),
        ("key=brass\ndoor=oak\nlamp=", ""),
        ("A came. Who came?", ""),
        ("Who?", ""),
    ],
    ids=str,
)
def test_a_question_at_the_end_of_a_text_is_not_a_source(text: str, asking: str) -> None:
    """If at least two sources remain; with a separate question, all parts are sources."""
    every = split_text(text, "sentence")
    sourced = sourced_text(None, text)
    assert (sourced.text, sourced.asking) == (text, asking)
    assert sourced.texts() == [part for part in every.texts() if part not in asking]
    assert sourced_text("Who?", text).texts() == every.texts()
    assert sourced_text(None, text, is_continued=False) == every == sourced_text(None, every)


def test_the_parts_of_documents_are_sources() -> None:
    whole = "A came. B left.\nC stayed."
    alone = with_documents([("a.md", f" {whole}\n")], "Who?", "sentence")
    assert alone == split_text(whole, "sentence", question="Who?")
    two = with_documents([("a.md", whole), ("b.md", "D? E")], "Who?", "line")
    assert two.texts() == ["A came. B left.", "C stayed.", "D? E"]
    assert [(each.name, each.title) for each in two.sources] == [
        ("line1", "a.md"),
        ("line2", "a.md"),
        ("line3", "b.md"),
    ]
    assert two.text == sourced_text("Who?", [whole, "D? E"]).text == f"{whole}\n\nD? E\n\nWho?"
    assert sourced_text("Who?", [whole, "D? E"], "line").texts() == two.texts()


def test_removed_sources_take_the_blanks_before_them_and_leave_other_text() -> None:
    plain = "<a b c / d e>"
    text = SourcedText(plain, tuple(Passage(c, plain.index(c), plain.index(c) + 1) for c in "abcde"))
    assert text.with_only([True] * 5) == text
    for kept, expected in {
        (False, True, True, True, True): "<b c / d e>",
        (True, False, True, False, True): "<a c / e>",
        (False, False, False, True, False): "< / d>",
        (False, False, False, False, False): "< / >",
    }.items():
        found = text.with_only(kept)
        assert found.text == expected
        assert found.texts() == [c for c, is_kept in zip("abcde", kept, strict=True) if is_kept]


def test_marks_are_removed_and_name_their_sources() -> None:
    found = marked_text("Use: <source notes> Ann came. </source> and <source>Bo left</source>. Who?")
    assert found is not None
    assert found.text == "Use:  Ann came.  and Bo left. Who?"
    assert found.texts() == ["Ann came.", "Bo left"]
    assert [(one.name, one.title) for one in found.sources] == [("source1", "notes"), ("source2", "")]
    assert marked_text("no marks") is None
    for text, message in {
        "<source a>x": "must have </source> after its last <source>",
        "x</source>": "must have <source NAME> before its next </source>",
        "<source a>x<source b>y</source>": "must have </source> before its next <source b>",
        "<source a> </source>": "source a: is empty",
    }.items():
        with pytest.raises(UserError, match=message):
            marked_text(text)


TEMPLATE = (
    "{% for m in messages %}[CLS] {{ m['role'] }} {{ m['content'] | trim }} [SEP]\n{% endfor %}"
    "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
)


@pytest.fixture
def talker(folder: Path) -> Pretrained:
    """A model of its own, whose chat template tests replace."""
    pretrained = open_model(folder)
    pretrained.tokenizer.chat_template = TEMPLATE
    return pretrained


def test_the_turns_and_tools_of_a_chat_are_sources(talker: Pretrained) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"it": 1}}}
    messages = [{"role": "system", "content": " the cat "}, {"role": "user", "content": "walks"}]
    found = chat_text(json.dumps({"messages": messages, "tools": [tool]}), talker)
    assert found.texts() == ["the cat", "walks", json.dumps(tool)]
    assert [(one.name, one.title) for one in found.sources] == [
        ("turn1", "system"),
        ("turn2", "user"),
        ("turn3", "tool look"),
    ]
    with pytest.raises(UserError, match="must be a chat as JSON"):
        chat_text("[1]", talker)
    talker.tokenizer.chat_template = TEMPLATE.partition("{% if tools")[0]
    with pytest.raises(UserError, match="omits or changes the tool look"):
        chat_text(json.dumps({"messages": messages, "tools": [tool]}), talker)


EACH = "{% for m in messages %}"
Pieces = list[str | tuple[str]]
"""What a template writes of a message; its content in a tuple."""
TEMPLATES: dict[str, tuple[str, Callable[[str, str], Pieces]]] = {
    "as roles": ("<{{ m.role }}> {{ m.content | trim }}\n", lambda role, text: [f"<{role}> ", (text,), "\n"]),
    "with blanks": ("{{ m.role }}:{{ m.content }}\n", lambda role, text: [f"{role}:", (text,), "\n"]),
    "twice": ("{{ m.content }} ({{ m.content }})\n", lambda _, text: [(text,), " (", (text,), ")\n"]),
    "escaped": (
        "{{ m.content | e }}\n",
        lambda _, text: [(html.escape(text).replace("&quot;", "&#34;"),), "\n"],
    ),
    "as JSON": (
        "{{ m | tojson }}\n",
        lambda role, text: [f'{{"role": "{role}", "content": "', (text,), '"}\n'],
    ),
    "by how it begins": (
        "{% if m.content.startswith('a') %}A {% endif %}{{ m.content }}|",
        lambda _, text: ["A " if text[0] == "a" else "", (text,), "|"],
    ),
    "cut": (
        "{{ m.role }} {{ m.content.split('</think>')[-1].lstrip() }}\n",
        lambda role, text: [f"{role} ", (text.split("</think>")[-1].lstrip(),), "\n"],
    ),
}
TURNS = (("system", "user"), ("user", "a"), ("assistant", "s"), ("user", "user"), ("assistant", "user & <b>"))
TURNS += (("user", "aa"), ("assistant", "<think>user</think> user"))


@pytest.mark.parametrize("case", TEMPLATES)
def test_messages_are_located_where_the_template_writes_them(case: str, talker: Pretrained) -> None:
    """Not where the same words occur earlier: in role marks, other messages or the template's own text."""
    template, write = TEMPLATES[case]
    talker.tokenizer.chat_template = f"{EACH}{template}{{% endfor %}}"
    whole, expected = "", []
    for role, content in TURNS:
        spans = []
        for piece in write(role, content):
            text = piece if isinstance(piece, str) else piece[0]
            spans += [] if isinstance(piece, str) else [(len(whole), len(whole) + len(text))]
            whole += text
        expected.append((role, tuple(spans)))
    blank = " " if case in ("as roles", "with blanks") else ""
    messages = [{"role": role, "content": f"{content}{blank}"} for role, content in TURNS]
    found = chat_text(json.dumps(messages), talker)
    if case == "with blanks":
        assert found.texts() == [content for _, content in TURNS]
        return
    assert found.text == whole
    assert [(one.title, one.spans) for one in found.sources] == expected
    # Only the places of the second message remain.
    left = found.with_only([number == 1 for number in range(len(TURNS))])
    assert [left.text[start:end] for start, end in left.sources[0].spans] == ["a"] * len(expected[1][1])


def test_messages_in_another_order_are_located(talker: Pretrained) -> None:
    others = (
        "{% for m in messages[1:] %}{% if loop.last %}[{{ messages[0].content }}]{% endif %}{{ m.content }},"
    )
    talker.tokenizer.chat_template = f"{others}{{% endfor %}}"
    messages = [{"role": role, "content": content} for role, content in TURNS[:4]]
    found = chat_text(json.dumps(messages), talker)
    assert found.text == "a,s,[user]user,"
    assert [(one.title, one.start) for one in found.sources] == [
        ("user", 0),
        ("assistant", 2),
        ("system", 5),
        ("user", 10),
    ]


def test_documents_are_located_by_the_template_not_by_their_words(talker: Pretrained) -> None:
    talker.tokenizer.chat_template = f"{EACH}{TEMPLATES['as roles'][0]}{{% endfor %}}"
    found = with_documents([("a", "user"), ("b", "s & user")], "r").in_template(talker)
    assert [one.start for one in found.sources] == [len("<user> "), len("<user> user\n\n")]
    talker.tokenizer.chat_template = f"{EACH}{TEMPLATES['escaped'][0]}{{% endfor %}}"
    found = with_documents([("a", "user"), ("b", "s & <user>")], "r").in_template(talker)
    assert found.texts() == ["user", "s &amp; &lt;user&gt;"]
    talker.tokenizer.chat_template = EACH + "{{ m.role }}{% endfor %}"
    with pytest.raises(UserError, match="omits or changes the text"):
        with_documents([("a", "1")], "r").in_template(talker)


def test_a_tool_is_not_located_in_a_message_about_it(talker: Pretrained) -> None:
    function = {"name": "look", "description": "look at it"}
    messages = [{"role": "user", "content": f"look: {json.dumps(function)}"}]
    chat = json.dumps({"messages": messages, "tools": [{"type": "function", "function": function}]})
    found = chat_text(chat, talker)
    assert [
        (one.title, text.startswith("look: ")) for one, text in zip(found.sources, found.texts(), strict=True)
    ] == [
        ("user", True),
        ("tool look", False),
    ]
    talker.tokenizer.chat_template = (
        EACH + "{{ m.content }}{% endfor %}{% for t in tools %}\n- "
        "{{ t.function.name }}: {{ t.function.description | upper }} "
        "({{ t.function.description }}){% endfor %}"
    )
    assert chat_text(chat, talker).texts()[1].startswith("look: LOOK AT IT")


def test_markup_is_special_in_a_template_but_not_in_a_source(talker: Pretrained) -> None:
    text = "the cat [SEP] walks"
    asked = sourced_text(None, "the cat. on the street. it was?").in_template(talker)
    assert asked.asking == "it was?" and asked.texts() == ["the cat.", "on the street."]
    plain = with_documents([("a", text)], "it was").in_template(talker)
    reading = read_sourced(talker, plain)
    special = [i for i, one in enumerate(reading.text.ids.tolist()) if one in (2, 3)]
    ids = talker.tokenizer(plain.text, add_special_tokens=False)["input_ids"]
    assert ids.count(3) == 2
    assert len(special) == 2 and not {*special} & {*reading.places[0]}
    # Without markup in the sources, the tokens equal those of the whole text.
    other = with_documents([("a", "the cat walks")], "it was").in_template(talker)
    assert (
        encoded_sources(talker, other)[0]
        == talker.tokenizer(other.text, add_special_tokens=False)["input_ids"]
    )
    # Without a template, the tokenizer still adds its special tokens around the text.
    bare = with_documents([("a", text)], "it was")
    found = encoded_sources(talker, bare)[0]
    assert found[0] == 2 and found[-1] == 3 and found[1:-1].count(3) == 0


@pytest.mark.parametrize(
    ("documents", "answer", "message"),
    [
        ((("a.md", " \n"),), "", "document: a.md: is empty"),
        (
            (("a.md", "cat " * 3000),),
            "was",
            "document: the prompt must be at most .* the longest source, doc1",
        ),
        ((("a.md", "cat"),), "zebra", "answer: 'zebra' is not in the vocabulary"),
        ((("a.md", "cat"),), "", "answer: must hold at least one token"),
        ((("a.md", "cat"),), "was " * 3000, "answer: must be at most"),
    ],
)
def test_invalid_documents_and_answers_are_refused(
    documents: Any, answer: str, message: str, llama: Pretrained
) -> None:
    with pytest.raises(UserError, match=message) as error:
        reading = read_sourced(llama, with_documents(documents, QUESTION), key="document")
        given_answer(llama, answer, reading.prompt.ids)
    assert len(error.value.lines) == 1


def test_an_encoder_cannot_write_an_answer(tmp_path: Path) -> None:
    pretrained = open_model(save_model(tmp_path, "BERT"))
    reading = read_sourced(pretrained, with_documents((("a.md", "cat"),), QUESTION), key="document")
    with pytest.raises(UserError, match=r"^model: bert cannot be shown: it has no language-modelling head"):
        written_answer(pretrained, reading, Decoding(3))


def test_equal_sources_are_noted(llama: Pretrained) -> None:
    reading = sourced_reading(llama, ("the cat", "it was", "the cat"))
    answer = given_answer(llama, "was", reading.prompt.ids)
    found = answer_sources(llama, reading, answer)
    assert found.notes == ("doc1, doc3 have the same text, so each can replace another that is removed.",)


def test_without_named_heads_sources_of_single_heads_are_removed() -> None:
    """All heads look a little at the first source, whose mean is the largest; one head looks at the last."""
    of_heads = torch.full((8, 3), 0.01)
    of_heads[:, 0] = 0.2
    of_heads[5] = torch.tensor([0.0, 0.1, 0.7])
    names = [("self", 0, head) for head in range(8)]
    mean = of_heads.mean(dim=0, keepdim=True)
    assert int(mean.argmax()) == 0
    assert likeliest(SourceWeights(names, of_heads, mean, None)).argsort(descending=True).tolist() == [
        2,
        1,
        0,
    ]
    chosen = torch.tensor([[0.1, 0.6, 0.3]])
    assert int(likeliest(SourceWeights(names, of_heads, mean, chosen)).argmax()) == 1


def test_removed_sources_are_shown_before_others(attn: Attn, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("\n".join(f"w{20 + line} the cat" for line in range(12)))
    flags = ["--split", "line", "--model", str(folder), "--answer", "was"]
    shown = attn(["source", "it", "--file", str(tmp_path / "text"), *flags]).out
    lines = [line for line in shown.splitlines() if re.match(r"line\d+ ", line)]
    assert len(lines) == 8 and sum("  -  -  " in line for line in lines) == 3


WRONG = {
    ("--document", __file__): "--document: needs --sentence",
    ("it", "--split", "document"): "--split: document needs --document",
    ("--model", "."): "--model: needs a question and sources: use --document or --file",
    ("<source a>b</source> it", "--method", "sampled", "--runs", "1"):
        "--runs: must be at least 2 (got 1)",
    ("<source a>b</source> it", "--max-new-tokens", "999"):
        "--max-new-tokens: must be at most 128 for tiny-induction (got 999)",
}  # fmt: skip


@pytest.mark.parametrize(("flags", "line"), WRONG.items(), ids=lambda each: str(each)[:30])
def test_wrong_settings_are_refused_on_one_line(flags: tuple[str, ...], line: str, attn: Attn) -> None:
    assert attn(["source", *flags]) == (2, "", f"{line}\n")


@pytest.mark.parametrize(
    ("flags", "line"),
    {
        ("it", "--document", "a.md", "--document", "bad.md"): "--document: bad.md is not UTF-8 text (byte 1)",
        ("it", "--document", "a.md", "--document", "e.md"): "--document: e.md: is empty",
        ("it", "--document", "a.md", "--answer", "bad.md"): "--answer: bad.md is not UTF-8 text (byte 1)",
        ("a <source x>b",): "TEXT: must have </source> after its last <source>",
        (
            "--chat",
            "--file",
            "c.json",
        ): '--file: must be a chat as JSON: [{"role": "user", "content": "..."}, '
        '...], or {"messages": [...], "tools": [...]}',
    }.items(),
    ids=lambda each: str(each)[:40],
)
def test_invalid_texts_are_refused_before_weights_are_read(
    flags: tuple[str, ...], line: str, attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("attncli.models.loading.load_pretrained", read)
    monkeypatch.chdir(tmp_path)
    for name, data in {"a.md": b"one", "bad.md": b"a\xff", "e.md": b" \n", "c.json": b'[{"a": 1}]'}.items():
        Path(name).write_bytes(data)
    assert attn(["source", *flags]) == (2, "", f"{line}\n")


@pytest.mark.parametrize(
    ("answer", "error"), [((), "writes nothing after this prompt"), (("--answer", "[CLS]"), "answer: ")]
)
def test_an_empty_answer_is_refused_before_the_search_for_heads(
    answer: tuple[str, ...], error: str, attn: Attn, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attncli.models.answers.write", lambda *_: None)
    monkeypatch.setattr("attncli.features.source.retrieving_heads.search_takes_less", lambda *_: True)
    searched: list[object] = []
    monkeypatch.setattr(
        "attncli.features.source.retrieving_heads.retrieving_heads", lambda *_, **__: searched.append(1)
    )
    asked = ["source", "it <source>w1 cat</source>", "--model", str(folder)]
    ended = attn([*asked, *answer])
    assert ended.code == 2 and error in ended.err and not searched, ended.err


@pytest.mark.parametrize("architecture", ["Llama", "T5"])
def test_missing_heads_are_refused_before_an_answer_is_written(
    architecture: str, attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[object] = []
    monkeypatch.setattr("attncli.models.answers.write", lambda *_: written.append(1))
    asked = ["source", "it <source>w1 cat</source>", "--model", str(save_writer(tmp_path, architecture))]
    ended = attn([*asked, "--head", "0:1,9:9"])
    assert (ended.code, written) == (2, [])
    assert ended.err == "--head: must be from 0:0 to 1:3 (got 9:9)\n"


def test_synthetic_contexts_are_reproducible_and_contain_the_answer() -> None:
    contexts = list(synthetic_contexts(5, seed=2))
    assert contexts == list(synthetic_contexts(5, seed=2)) != list(synthetic_contexts(5, seed=3))
    for context in contexts:
        assert len(context.sentences) == NUM_SENTENCES
        assert context.sentences[context.right] == context.question + context.answer
        assert context.sourced().texts() == context.sentences


CHOSEN = RetrievingHeads(
    rows=RetrievingHead.rows([]), chosen=ChosenHead.table(chosen_head=["1:0"]), num_contexts=24
)


def report_of(attn: Attn, *arguments: str) -> dict[str, Any]:
    ended = attn(["source", *arguments, "--format", "json"])
    assert ended.code == 0, ended.err
    report: dict[str, Any] = json.loads(ended.out)
    return report


def test_documents_and_an_answer_come_from_files(attn: Attn, folder: Path, tmp_path: Path) -> None:
    for name, text in {"a.md": PARTS[0], "b.md": PARTS[1], "answer.txt": "was tired\n"}.items():
        (tmp_path / name).write_text(text)
    named = [f"--document={tmp_path / name}" for name in ("a.md", "b.md")]
    flags = ["--model", str(folder), f"--answer={tmp_path / 'answer.txt'}", "--head", "0:1,1:0"]
    report = report_of(attn, QUESTION, *named, *flags)
    rows = {row["name"]: row for row in report["statistics"]["sources"]}
    assert {name: row["title"] for name, row in rows.items()} == {"doc1": "a.md", "doc2": "b.md"}
    assert report["written"] == "was tired"
    assert report["statistics"]["source"]["first"] in (1, 2)
    assert all(row["retrieving_heads"] > 0 for row in rows.values())


def test_results_have_typed_columns(attn: Attn) -> None:
    """The Python result equals the command's JSON in every column."""
    context = "key=brass\ndoor=oak\nhat=wool\nlamp=green"
    report = report_of(attn, "--head", "1:2")
    statistics = report["statistics"]
    result = attncli.answer_sources(attncli.open_model(), "lamp=", context, split="line", heads="1:2")
    assert "kind" not in report and report["written"] == result.answer
    for name, table in {"sources": result.sources, "answer": result.tokens, "heads": result.heads}.items():
        assert plain(table) == statistics[name], name
    assert plain(result.rankings) == statistics["rankings"]
    assert result.counts == statistics["source"] and result.first == result.sources[0].source
    assert result.sources.column("lost").tolist() == [source.lost for source in result.sources]
    assert result.weights is not None and result.weights.shape == (len(result.ids), len(result.sources))


def test_retrieving_heads_are_cached_and_used(
    attn: Attn, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = str(folder)
    spec = SourceSpec(model=model, sentence="it")
    assert cached_heads(spec) is None
    asked = ["source", "<source a>the cat</source> it", "--model", model, "--answer", "was"]
    said = " ".join(attn(asked).out.split())
    assert f"Next, with attn source: --find-heads --model {model}" in said
    place = cache_heads(spec, CHOSEN)
    assert place is not None and place.parent == tmp_path / "cache" / "attncli" / "heads"
    assert cached_heads(spec) == ["1:0"]
    assert "Next, with attn source: --method removal | " in attn(asked).out
    report = report_of(attn, "<source a>the cat</source> it", "--model", model, "--answer", "was")
    assert "Retrieving heads, chosen on synthetic contexts: 1:0." in report["notes"]
    assert report["statistics"]["sources"][0]["retrieving_heads"] is not None
    other = str(save_writer(tmp_path / "other", "GPT-2"))
    assert cached_heads(SourceSpec(model=other, sentence="it")) is None
    place.write_text("{")
    ended = attn(asked)
    assert ended.code == 2 and ended.err.startswith("--head: ") and "is damaged" in ended.err


@pytest.mark.nightly
def test_heads_are_searched_once_if_the_search_reads_less_than_the_prompt(
    attn: Attn, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("attncli.features.source.retrieving_heads.NUM_CONTEXTS", 1)
    contexts = "attncli.features.source.retrieving_heads.synthetic_contexts"
    monkeypatch.setattr(contexts, lambda *_: synthetic_contexts(1))
    searches: list[str] = []
    (context,) = synthetic_contexts(1)
    count = len(open_model(folder).encoded(context.sourced().text + context.answer)["input_ids"])

    def asked(num_tokens: int, answer: str = "was") -> dict[str, Any]:
        text = " ".join(["the"] * (num_tokens - 3))
        return report_of(attn, f"<source a>{text}</source>", "--model", str(folder), "--answer", answer)

    def search(_model: object, **_: object) -> RetrievingHeads:
        searches.append("search")
        return CHOSEN

    monkeypatch.setattr("attncli.features.source.door.retrieving_heads", search)
    short = asked(count)
    assert not searches and short["statistics"]["sources"][0]["retrieving_heads"] is None
    for _ in range(2):
        found = asked(count + 5)
        assert searches == ["search"]
        assert "Retrieving heads, chosen on synthetic contexts: 1:0." in found["notes"]
    # A model without retrieving heads is not searched again.
    (kept,) = (tmp_path / "cache" / "attncli" / "heads").iterdir()
    kept.unlink()

    def none(_model: object, **_: object) -> RetrievingHeads:
        searches.append("none")
        raise UserError("model: no head looks at the right sentence")

    monkeypatch.setattr("attncli.features.source.door.retrieving_heads", none)
    for _ in range(2):
        found = asked(count + 5)
        assert searches == ["search", "none"]
        assert any(
            "retrieves on synthetic contexts; use --head to name heads" in note for note in found["notes"]
        )


def test_many_prompts_fill_a_store_and_meet_conditions(attn: Attn, tmp_path: Path) -> None:
    (tmp_path / "source.yaml").write_text("experiment: source\nsplit: line\nmethod: removal\n")
    lines = [
        {"sentence": "lamp=", "context": "key=brass\nlamp=green", "answer": "green", "id": "a"},
        {"sentence": "key=", "context": "hat=wool\nkey=brass\ndoor=oak", "answer": "brass", "id": "b"},
    ]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["batch", str(tmp_path / "source.yaml"), "--file", str(prompts)]
    store = str(tmp_path / "runs.db")
    kept = attn([*command, "-o", store, "--expect", "source.first == line2"])
    assert kept.code == 0, kept.err
    results = json.loads(attn(["results", store, "--statistic", "source.first", "--format", "json"]).out)
    (row,) = results["statistics"]["summary"]
    assert (row["count"], row["min"], row["max"]) == (2, 2, 2)
    broken = attn([*command, "--expect", "source.first == line1", "--format", "csv"])
    assert broken.code == 1 and "expected source.first == line1: got 2.0" in broken.err
    wrong = attn([*command, "--expect", "entropy.mean == line1"])
    assert wrong.code == 2 and "must end in a number (got line1)" in wrong.err


def test_a_token_is_assigned_to_the_source_with_the_largest_loss(talker: Pretrained) -> None:
    reading = sourced_reading(talker)
    answer = given_answer(talker, f" {ANSWER}", reading.prompt.ids)
    found = answer_sources(talker, reading, answer, method="removal")
    removals = SourcesTakenOut(talker, reading, Replay(talker.whole, reading.prompt.ids, answer))
    count = len(reading.places)
    whole = removals.log_probabilities(torch.ones(1, count, dtype=torch.bool))
    lost = whole - removals.log_probabilities(~torch.eye(count, dtype=torch.bool))
    for place, row in enumerate(found.tokens):
        gains = lost[:, place].clamp(min=0)
        largest = float(gains.max())
        is_clear = largest >= 0.05 and 2 * largest > float(gains.sum())
        assert row["measured"] == pytest.approx(largest, abs=1e-4)
        assert row["measured_source"] == (int(gains.argmax()) + 1 if is_clear else None)
