"""Syntactic relations of heads, compared with loops over the eager weights of transformers."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from scipy.stats import binomtest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from attncli.features.pairs.pair_counts import most_looked_at
from tests.conftest import Attn
from tests.features.pairs.conftest import word_weights
from tests.measure.test_words import save_letters
from tests.model_folders import save_model
from tests.running import ROOT, run

# For each word: its form, its head (0 for the root), the relation, and True if a space follows.
SENTENCES = [
    [("the", 2, "det", True), ("cat", 3, "nsubj", True), ("sat", 0, "root", True), ("on", 6, "case", True),
     ("a", 6, "det", True), ("mat", 3, "obl", False), (".", 3, "punct", True)],
    [("a", 2, "det", True), ("dog", 3, "nsubj", True), ("saw", 0, "root", True), ("it", 3, "obj", True)],
    [("cats", 2, "nsubj", True), ("run", 0, "root", True)],
    [("we", 4, "nsubj", True), ("do", 4, "aux", True), ("not", 4, "advmod", True), ("see", 0, "root", True),
     ("the", 7, "det", True), ("big", 7, "amod", True), ("dogs", 4, "obj", True)],
]  # fmt: skip


def conllu(sentences: list[list[tuple[str, int, str, bool]]]) -> str:
    blocks = []
    for sentence in sentences:
        rows = [
            f"{n}\t{form}\t_\t_\t_\t_\t{head}\t{relation}\t_\t{'_' if blank else 'SpaceAfter=No'}"
            for n, (form, head, relation, blank) in enumerate(sentence, start=1)
        ]
        blocks.append("\n".join(["# a comment", *rows]) + "\n")
    return "\n".join(blocks)


def naive_hits(folder: Path) -> tuple[Counter[tuple[str, int, int, str]], Counter[str]]:
    hits: Counter[tuple[str, int, int, str]] = Counter()
    words: Counter[str] = Counter()
    for sentence in SENTENCES:
        for name in (relation for _, head, relation, _ in sentence if head):
            words[name] += 1
        for layer, weights in enumerate(word_weights(folder, [form for form, *_ in sentence])):
            for head, of_head in enumerate(weights.tolist()):
                for word, (_, other, name, _) in enumerate(sentence):
                    if not other:
                        continue
                    rest = [n for n in range(len(sentence)) if n != word]
                    looked_at = max(rest, key=lambda n: of_head[word][n])
                    looks = max(rest, key=lambda n: of_head[n][word])
                    hits[name, layer, head, "to_head"] += (
                        looked_at == other - 1 and of_head[word][looked_at] > 0
                    )
                    hits[name, layer, head, "from_head"] += looks == other - 1 and of_head[looks][word] > 0
    return hits, words


@pytest.mark.parametrize("architecture", ["BERT", "GPT-2", "Mistral", "GPT-OSS"])
def test_shares_of_every_head_agree_with_a_naive_loop(tmp_path: Path, architecture: str) -> None:
    folder = save_letters(tmp_path / "model", architecture)
    file = tmp_path / "parsed.conllu"
    file.write_text(conllu(SENTENCES))
    report = run("heads", model=str(folder), relations=str(file))
    hits, words = naive_hits(folder)
    rows = report.table("intervals")
    for row in rows:
        name, place = row["relation"], (row["layer"], row["head"], row["direction"])
        own = (
            hits[(name, *place)] if name != "all relations" else sum(hits[(other, *place)] for other in words)
        )
        count = words[str(name)] if name != "all relations" else words.total()
        assert (row["hits"], row["words"]) == (own, count), (name, place)
        wilson = binomtest(own, count).proportion_ci(method="wilson")
        assert (row["lower"], row["upper"]) == pytest.approx((wilson.low, wilson.high), abs=1e-12)
    assert sum(hits.values()) > 0 and {row["relation"] for row in rows} == {"all relations", *words}
    heads = report.table("heads")
    assert len(heads) * 2 * (len(words) + 1) == len(rows)
    assert heads[0]["det.from_head"] == hits["det", 0, 0, "from_head"] / words["det"]


def test_the_best_head_is_compared_with_the_best_offset(letters: Path, tmp_path: Path) -> None:
    file = tmp_path / "parsed.conllu"
    file.write_text(conllu(SENTENCES))
    report = run("heads", model=str(letters), relations=str(file))
    offsets: dict[str, Counter[int]] = {}
    for sentence in SENTENCES:
        for word, (_, other, name, _) in enumerate(sentence, start=1):
            for counted in (name, "all relations") if other else ():
                offsets.setdefault(counted, Counter())[other - word] += 1
    for row in report.table("relations"):
        name = str(row["relation"])
        most = max(offsets[name].values())
        assert offsets[name][int(str(row["offset"]))] == most
        assert row["offset_share"] == most / offsets[name].total() and row["words"] == offsets[name].total()
        of_heads = [one["mean"] for one in report.table("intervals") if one["relation"] == name]
        assert row["share"] == max(map(float, map(str, of_heads)))
    assert report.table("relations")[0]["relation"] == "all relations"
    assert report.numbers("sentences") == {
        "num_sentences": 4, "num_words": 20, "num_relations": 16, "num_unaligned": 0
    }  # fmt: skip


def test_words_with_several_parts(letters: Path, tmp_path: Path) -> None:
    """`dal` is one word in the text, which counts once for `mar`; an empty node is not a word."""
    file = tmp_path / "parsed.conllu"
    file.write_text(
        "1-2\tvanos\t_\t_\t_\t_\t_\t_\t_\t_\n"
        "1\tva\t_\t_\t_\t_\t0\troot\t_\t_\n"
        "2\tnos\t_\t_\t_\t_\t1\tobj\t_\t_\n"
        "3-5\tdal\t_\t_\t_\t_\t_\t_\t_\t_\n"
        "3\tda\t_\t_\t_\t_\t6\tcase\t_\t_\n"
        "4\ta\t_\t_\t_\t_\t6\tcase\t_\t_\n"
        "5\tel\t_\t_\t_\t_\t6\tdet\t_\t_\n"
        "6\tmar\t_\t_\t_\t_\t1\tobl\t_\tSpaceAfter=No\n"
        "6.1\tnada\t_\t_\t_\t_\t_\t_\t1:dep\t_\n"
        "7\tx\t_\t_\t_\t_\t6\tdep\t_\t_\n"
    )
    report = run("heads", model=str(letters), relations=str(file))
    assert report.numbers("sentences") == {
        "num_sentences": 1, "num_words": 4, "num_relations": 5, "num_unaligned": 1
    }  # fmt: skip
    rows = {row["relation"]: (row["words"], row["offset"]) for row in report.table("relations")}
    assert rows == {"all relations": (3, -1), "case": (1, 1), "det": (1, 1), "obl": (1, -2), "dep": (1, -1)}
    hits = {(row["head"], row["statistic"]): row["hits"] for row in report.table("intervals")}
    of_all = {place: count for place, count in hits.items() if place[1].startswith("all relations")}
    for (head, statistic), count in of_all.items():
        direction = statistic.rpartition(".")[2]
        assert count == sum(hits[head, f"{name}.{direction}"] for name in ("det", "obl", "dep"))
    assert "1 relation is left out: within one written word" in " ".join(report.notes)
    assert any(note.startswith("2 relations are between two written words that") for note in report.notes)


def test_ties_go_to_the_first_word_and_zero_weights_to_no_word() -> None:
    weights = torch.tensor([[0.5, 0.3, 0.3 + 1e-7, 0.0], [0.0, 1.0, 0.0, 0.0]])
    among = torch.tensor([[False, True, True, True], [True, False, True, True]])
    assert most_looked_at(weights, among).tolist() == [1, -1]


ROW = "1\ta\t_\t_\t_\t_\t0\troot\t_\t_\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--relations: {}: contains no sentences"),
        ("plain text\n", "--relations: {}:1: is not CoNLL-U: Invalid line format, line must contain"),
        (f"{ROW}\n\n1\ta\t_\t_\t_\t_\t7\tdep\t_\t_\n", "{}:4: word 1: the head must be at most 1 (got 7)"),
        ("1\ta\n", "{}:1: word 1 lacks its syntactic head or relation (columns 7 and 8)"),
        (f"{ROW}3\tb\t_\t_\t_\t_\t1\tdep\t_\t_\n", "{}:2: word 2 is missing (found 3)"),
        (
            f"# x\n{ROW}2\tb\t_\t_\t_\t_\t1\ta b\t_\t_\n",
            "{}:3: word 2: a relation must not contain whitespace",
        ),
        (f"{ROW}2\tb\t_\t_\t_\t_\t1\t\x1b[31mred\t_\t_\n", "{}:2: word 2: a relation must not contain"),
        (f"{ROW}2\tb\t_\t_\t_\t_\t1\t\u200bx\t_\t_\n", "{}:2: word 2: a relation must not contain"),
        (f"{ROW}1-1x\tb\t_\n", "{}:2: is not CoNLL-U: Failed parsing field 'id': '1-1x' is not a valid ID."),
        (f"{ROW}2\t\n\n\tSPACE\t_\n", "{}:2: word 2 has no form (column 2)"),
        (f"{ROW}\tx\t_\n", "{}:2: has no word number (column 1)"),
        (f"3-4\tb\t_\n{ROW}", "{}:1: word 3-4 must come before word 3 and must not overlap other words"),
        (f"1-2\tb\t_\n{ROW}", "{}:1: word 2 is missing: a written word extends to word 2"),
        ("# x\n1\t \t_\t_\t_\t_\t0\troot\t_\t_\n", "{}:2: word 1 has no form (column 2)"),
        (ROW, "{}: has no relation between two words with separate tokens in tiny-induction"),
    ],
)
def test_invalid_files_are_reported_with_line_numbers(
    attn: Attn, tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "bad.conllu"
    file.write_text(text)
    ended = attn(["heads", "--relations", str(file)])
    assert ended.code in (1, 2) and message.format(file) in ended.err and ended.err.count("\n") == 1


def test_other_texts_and_statistics_are_refused(attn: Attn) -> None:
    file = str(ROOT / "configs" / "alice.conllu")
    for flags in (["--sentence", "a"], ["--sort", "entropy"], ["--words"], ["--weighted"], ["--to", "a"]):
        ended = attn(["heads", "--relations", file, *flags])
        assert ended.code == 2 and ended.err == f"{flags[0]}: cannot be combined with --relations\n"


@pytest.mark.nightly
def test_the_screen_the_data_and_the_difference(attn: Attn, tmp_path: Path) -> None:
    file = str(ROOT / "configs" / "alice.conllu")
    shown = attn(["heads", "--relations", file]).out
    assert (
        "16 sentences of 161 words: alice.conllu" in shown and "95 % intervals are Wilson intervals" in shown
    )
    assert len(shown.splitlines()) <= 30
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, ablated in zip(paths, ([], ["--ablate", "0:1"]), strict=True):
        assert attn(["heads", "--relations", file, *ablated, "-o", str(path)]).code == 0
    assert "changed beyond their 95 % intervals" in attn(["diff", *map(str, paths)]).out
    table = attn(["heads", "--relations", file, "--format", "csv", "--show", "intervals"]).out
    assert table.startswith("layer,head,statistic,relation,direction,hits,words,mean,lower,upper\n")
    assert '"case.to_head"' in attn(["heads", "--relations", file, "--format", "html"]).out


def test_words_that_share_a_token_are_left_out(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "ab": 1, "c": 2, "d": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    save_model(tmp_path / "model", "GPT-2")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(tmp_path / "model")
    file = tmp_path / "parsed.conllu"
    words = [
        ("a", 2, "det", False),
        ("b", 4, "nsubj", True),
        ("c", 4, "advmod", True),
        ("d", 0, "root", True),
    ]
    file.write_text(conllu([words]))
    report = run("heads", model=str(tmp_path / "model"), relations=str(file))
    assert [row["relation"] for row in report.table("relations")] == ["all relations", "advmod"]
    assert report.numbers("sentences")["num_unaligned"] == 2
    assert any(note.startswith("2 relations are left out") for note in report.notes)


def test_a_special_token_inside_a_word_belongs_to_the_word(letters: Path, tmp_path: Path) -> None:
    """Such as a byte of a byte fallback; `all` is an ordinary relation."""
    file = tmp_path / "parsed.conllu"
    words = [("a[SEP]b", 2, "all", True), ("cat", 0, "root", True), ("sat", 2, "all", True)]
    file.write_text(conllu([words]))
    report = run("heads", model=str(letters), relations=str(file))
    assert {row["relation"]: row["words"] for row in report.table("relations")} == {
        "all relations": 2,
        "all": 2,
    }
    assert report.numbers("sentences")["num_unaligned"] == 0


def test_two_spaces_in_a_form_do_not_separate_columns(letters: Path, tmp_path: Path) -> None:
    file = tmp_path / "parsed.conllu"
    file.write_text(conllu([[("a  b", 2, "dep", True), ("c", 0, "root", True)]]))
    assert run("heads", model=str(letters), relations=str(file)).numbers("sentences")["num_words"] == 2
