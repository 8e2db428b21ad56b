"""Texts separated with models, compared with the numbers of other programs; detectors applied to texts."""

import json
import os
import re
from datetime import date
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from transformers import AutoModelForCausalLM, BertConfig, BertModel

import attncli
from attncli.errors import UserError
from attncli.features.separate.detectors import TextsToFit, distracted_heads
from attncli.features.separate.labelled_texts import LabelledReader, PartedReading
from attncli.features.separate.question import EXAMPLE, EXAMPLE_GROUP, EXAMPLE_LABEL
from attncli.features.separate.results import SeparatedTexts
from attncli.features.separate.separation import ALL_HEADS
from attncli.features.separate.text_features import FeatureRun, PartMasses
from attncli.models.folder import SHIPPED_MODEL
from attncli.models.labelled_files import LabelledFile, LabelledText, LabelNames, without_marks
from attncli.models.loading import borrowed
from attncli.models.pretrained import ModelText, Pretrained
from attncli.models.text_files import TextLine
from tests.checkpoints import smollm2
from tests.conftest import Attn

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def smollm() -> Pretrained:
    return attncli.open_model(smollm2())


@pytest.fixture(scope="module")
def tiny() -> Pretrained:
    return attncli.open_model()


def parted(ids: list[int], **parts: Any) -> PartedReading:
    return PartedReading(ModelText(tuple(map(str, ids)), torch.tensor(ids)), **parts)


def test_weights_on_instructions_agree_with_attention_tracker(smollm: Pretrained) -> None:
    golden = json.loads((HERE / "attention_tracker_heads.json").read_text())
    prompt = golden["prompts"][0]
    ids = smollm.tokenizer.convert_tokens_to_ids(prompt["tokens"])
    spans = prompt["spans"]
    places = {"instruction": tuple(range(*spans[0])), "text": tuple(range(*spans[1]))}
    run = FeatureRun(smollm).go([parted(ids, places=places)])
    # If a head has weights near 1e-7 on both parts, its share has the rounding errors of the scores.
    for statistic, theirs, most in (
        ("instruction_share", "focus", 2e-6),
        ("instruction_mass", "instruction_mass", 1e-6),
    ):
        kept = [place for place, each in enumerate(run.features) if each.statistic == statistic]
        assert np.abs(run.numbers[0, kept].numpy() - np.ravel(prompt[theirs])).max() < most
    # Its prompt equals the one that attn builds from an instruction and a text.
    text = {"instruction": prompt["instruction"], "text": f"Data: {prompt['document']}"}
    read = LabelledReader(smollm).read(LabelledText(TextLine(1, text["text"]), text))
    assert read.text.ids.tolist() == ids

    focus = torch.tensor(np.array([np.ravel(each["focus"]) for each in golden["prompts"]]))
    is_attack = torch.arange(len(focus)) >= len(focus) / 2
    texts = TextsToFit(focus, is_attack, torch.zeros(len(focus), dtype=torch.int64), torch.Generator())
    most = max(number for number, heads in golden["heads"].items() if heads)
    assert [[place // 9, place % 9] for place in distracted_heads(texts).places] == golden["heads"][most]


def test_ratios_agree_with_lookback_lens(smollm: Pretrained) -> None:
    golden = json.loads((HERE / "lookback_lens_ratios.json").read_text())
    for answer in golden["answers"][:1]:
        reading = parted(
            answer["ids"] + answer["completion_ids"],
            places={"text": tuple(range(answer["context_length"]))},
            context_end=answer["context_length"],
            num_answer=len(answer["completion_ids"]),
        )
        run = FeatureRun(smollm).go([reading])
        kept = [place for place, each in enumerate(run.features) if each.statistic == "lookback_ratio"]
        assert np.abs(run.numbers[0, kept].numpy() - np.ravel(answer["mean"])).max() < 1e-6


def test_losses_and_features_agree_with_single_runs(tiny: Pretrained) -> None:
    texts = ["hat=wool\nhat=", "key=blue\nhat=", "coat=oak\nbel="]
    reader = LabelledReader(tiny)
    readings = [reader.read(LabelledText(TextLine(1, text), {"text": text})) for text in texts]
    together = FeatureRun(tiny, with_loss=True).go(readings)
    assert together.losses is not None
    eager = AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL).eval()
    for number, reading in enumerate(readings):
        alone = FeatureRun(tiny).go([reading])
        assert torch.allclose(alone.numbers[0], together.numbers[number], atol=1e-5, equal_nan=True)
        ids = reading.text.ids.unsqueeze(0)
        with torch.no_grad():
            loss = eager(input_ids=ids, labels=ids).loss
        assert float(together.losses[number]) == pytest.approx(float(loss), abs=1e-5)
    survey = attncli.survey(tiny, texts[0])
    entropies = [place for place, each in enumerate(together.features) if each.statistic == "entropy"]
    assert np.allclose(together.numbers[0, entropies], survey.heads.column("entropy"), atol=1e-5)


def test_parts_have_tokens_and_masses_are_sums(tiny: Pretrained) -> None:
    assert without_marks("a <<b c>> d << e") == ("a b c d << e", [(2, 5)])
    reader = LabelledReader(tiny)
    parts = {"document": "hat=wool", "text": " key=<<blue>>", "answer": "oak"}
    read = reader.read(LabelledText(TextLine(1, parts["text"]), parts))
    assert isinstance(read, PartedReading)
    labels = {
        name: "".join(read.text.tokens[place] for place in places) for name, places in read.places.items()
    }
    assert labels == {"document": "hat=wool", "text": "key=blue", "marked": "blue"}
    assert read.num_answer == 3 and read.context_end == len(read.text.ids) - 3
    assert list(read.rows) == [*range(len(read.text.ids) - 4, len(read.text.ids) - 1)]
    run = FeatureRun(tiny).go([read, read])
    weights = torch.cat([layer.weights()[0] for layer in attncli.layers(tiny, read)])
    rows = weights[:, list(read.rows)]
    names = [feature.statistic for feature in run.features[: len(run.features) // len(weights)]]
    assert names == PartMasses([read], is_causal=True).statistics()
    numbers = run.numbers[1].view(len(weights), -1)
    for name in read.places:
        expected = rows[..., list(read.places[name])].sum(-1).mean(-1)
        assert torch.allclose(numbers[:, names.index(f"{name}_mass")], expected, atol=1e-6)
    ratios = []
    for row in read.rows:
        on_context = weights[:, row, : read.context_end].mean(-1)
        new = weights[:, row, read.context_end : row + 1]
        ratios.append(on_context / (on_context + (new.mean(-1) if new.shape[-1] else 0)))
    assert torch.allclose(numbers[:, names.index("lookback_ratio")], torch.stack(ratios).mean(0), atol=1e-6)


def test_rows_of_an_encoder_see_all_keys() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 28, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20}
    model = BertModel(BertConfig(vocab_size=31, initializer_range=0.7, **sizes)).eval()
    model.set_attn_implementation("eager")
    ids, places, end, num_answer = [*range(3, 20)], {"instruction": (1, 2, 3), "text": (5, 6, 7, 8)}, 9, 5
    with torch.no_grad():
        eager = model(input_ids=torch.tensor([ids]), output_attentions=True).attentions
    reading = parted(ids, places=places, context_end=end, num_answer=num_answer)
    with borrowed("bert", model, None) as pretrained:
        run = FeatureRun(pretrained).go([reading])
    weights = torch.cat(eager).flatten(0, 1)
    on_context, on_new = weights[..., :end].mean(-1), weights[..., end:].mean(-1)
    expected = {f"{name}_mass": weights[..., [*keys]].sum(-1).mean(-1) for name, keys in places.items()}
    expected["lookback_ratio"] = (on_context / (on_context + on_new)).mean(-1)
    for statistic, theirs in expected.items():
        kept = [place for place, each in enumerate(run.features) if each.statistic == statistic]
        assert torch.allclose(run.numbers[0, kept], theirs.flatten(), atol=1e-6), statistic


def test_a_detector_scores_texts_and_refuses_edited_reports_and_other_models(
    tiny: Pretrained, example: SeparatedTexts, detector_file: Path, attn: Attn, tmp_path: Path
) -> None:
    detector = attncli.read_detector(detector_file, tiny)
    applied = attncli.apply_detector(tiny, EXAMPLE, detector_file)
    with LabelledFile(EXAMPLE, LabelNames(EXAMPLE_LABEL)) as texts:
        texts.count()
        for (_, text), row in zip(texts.numbered(), applied.scores, strict=True):
            assert detector.score(text.line.text) == pytest.approx(row.score, abs=1e-4)
    fitted = next(row for row in example.fitted if row.detector == ALL_HEADS)
    assert detector.threshold == fitted.threshold and fitted.positive == "answered=yes"

    measured = attncli.apply_detector(tiny, EXAMPLE, detector_file, label=EXAMPLE_LABEL).measured
    is_positive = [row.label == fitted.positive for row in example.predictions]
    called = applied.scores.column("margin") > 0
    assert measured.auroc == pytest.approx(roc_auc_score(is_positive, applied.scores.column("score")))
    assert measured.auroc > 0.9  # on its training texts
    assert measured.hits == np.mean(called[is_positive])
    assert measured.false_alarms == np.mean(called[~np.array(is_positive)])
    assert not applied.measured and measured.lower is not None

    held = example.held_out
    assert held.hits == np.mean(
        [row.margin > 0 for row in example.predictions if row.label == fitted.positive]
    )
    assert applied.notes[1].startswith(f"Held out: AUROC {held.auroc:.2f} ({held.lower:.2f} to ")
    assert detector.score({"answered": 1, "text": "hat="}) == detector.score("hat=")
    for wrong in (5, None, "", {"text": ""}, {"text": None}, {}, ["a"]):
        with pytest.raises(UserError) as refused:
            detector.score(wrong)
        assert len(refused.value.lines) == 1
    with pytest.raises(UserError, match="must have the parts that the detector was fitted to: text"):
        detector.score({"text": "hat=", "answer": "oak"})
    ended = attn(["separate", str(EXAMPLE), "--apply", str(detector_file)])
    assert "Held out: AUROC" in ended.out and "detector.json" not in ended.out.partition("Next")[2]

    file = tmp_path / "edited.json"

    def edited(rows: str, name: str, value: object) -> Path:
        report = json.loads(detector_file.read_text())
        for row in report["statistics"][rows]:
            row[name] = value
        file.write_text(json.dumps(report))
        return file

    for rows, name, value in (
        *(("coefficients", "scale", value) for value in (0, float("inf"), float("nan"))),
        *(("coefficients", "coefficient", value) for value in (float("nan"), 1e308)),
        *(("fitted", "threshold", value) for value in (float("nan"), 1e308)),
    ):
        with pytest.raises(UserError, match=f"{name} must be"):
            attncli.read_detector(edited(rows, name, value), tiny)
    with pytest.raises(UserError, match="needs 99:0 induction_mul"):
        attncli.read_detector(edited("coefficients", "layer", 99), tiny).score("hat=")
    ended = attn(["separate", str(EXAMPLE), "--apply", str(edited("fitted", "digest", "another"))])
    assert ended.code == 2 and "must be the model that the detector was fitted to" in ended.err
    assert ended.err.count("\n") == 1
    for rows, message in (
        ("coefficients", "the detector uses no statistics: no statistic separated the groups"),
        ("fitted", "contains no detector"),
    ):
        report = json.loads(detector_file.read_text())
        report["statistics"][rows] = []
        file.write_text(json.dumps(report))
        with pytest.raises(UserError, match=message):
            attncli.read_detector(file, tiny)
    file.write_text("{}")
    with pytest.raises(UserError, match="contains no detector"):
        attncli.read_detector(file, tiny)


@pytest.mark.nightly
def test_the_example_is_shown_and_conditions_are_checked(example: SeparatedTexts, attn: Attn) -> None:
    ended = attn(["separate", "--permutations", "19", "--expect", "held_out.auroc > 0.99"])
    assert ended.code == 1 and "held_out.auroc" in ended.err
    first = ended.out.splitlines()[0]
    assert first.startswith("separate: ") and f"all heads {example.held_out.auroc:.2f}" in ended.out
    assert ended.out.count("\n") <= 48
    assert {row.detector for row in example.detectors} == {
        *("all heads", "best head", "length", "loss", "bag of words", "bag of tokens")
    }
    assert all(len(row.true_positive_rate) == len(row.false_positive_rate) for row in example.curves)
    assert all(row.true_positive_rate[-1] == 1 for row in example.curves)


@pytest.mark.nightly
def test_a_detector_keeps_its_direction(tiny: Pretrained, attn: Attn, tmp_path: Path) -> None:
    file = tmp_path / "detector.json"
    given = ["--label", "answered=no", "--hold-out", EXAMPLE_GROUP, "--permutations", "3"]
    assert attn(["separate", str(EXAMPLE), *given, "-o", str(file)]).code == 0
    applied = [
        attncli.apply_detector(tiny, EXAMPLE, file, label=label) for label in ("answered", "answered=no")
    ]
    assert applied[0] == applied[1] and (applied[0].measured.auroc or 0) > 0.9
    assert applied[0].notes[0] == (
        "All of these texts are among the detector's training texts, so this is not an independent test."
    )
    ended = attn(["separate", str(EXAMPLE), "--apply", str(file), "--label", "answered=yes"])
    assert ended.code == 2 and ended.err.count("\n") == 1
    assert "answered=yes is the detector's negative value: use answered=no" in ended.err
    rows = [
        {"text": f"hat={n}", "other": n % 2, "answered": ("no", "perhaps")[n % 2], "word": "yn"[n % 2]}
        for n in range(4)
    ]
    result = attncli.apply_detector(tiny, rows, file, label="other")
    assert result.notes[0] == "A hit is a text with other=1 that the detector calls answered=no."
    assert not any("training texts" in note for note in result.notes)
    assert not any("hit" in note for note in attncli.apply_detector(tiny, rows, file, label="answered").notes)
    with pytest.raises(UserError, match="answered=perhaps is the detector's negative value"):
        attncli.apply_detector(tiny, rows, file, label="answered=perhaps")
    known = {"text": "hat=", **rows[0]}
    known["text"] = next(text.line.text for _, text in LabelledFile(EXAMPLE).numbered())
    noted = attncli.apply_detector(tiny, [known, *rows], file).notes[0]
    assert noted.startswith("1 of these 5 texts is among the detector's training texts")
    hit, plain = ([row | {"answered": value} for row in rows] for value in ("no", "yes"))
    for texts, name, label in ((hit, "hits", "answered"), (plain, "false_alarms", "answered=no")):
        only = attncli.apply_detector(tiny, texts, file, label=label)
        assert {**only.measured} == {name: only.num_positive / 4}
    by_other = attncli.apply_detector(tiny, [row | {"other": 7} for row in rows], file, label="other=7")
    assert {*by_other.measured} == {"hits"}
    with pytest.raises(
        UserError, match=r"other has only one value in these texts: name the positive value, such as other=7"
    ):
        attncli.apply_detector(tiny, [row | {"other": 7} for row in rows], file, label="other")
    path = tmp_path / "plain.csv"
    path.write_text("text,answered\nhat=1,yes\nhat=2,yes\n")
    shown = attn(["separate", str(path), "--apply", str(file), "--label", "answered"]).out
    assert re.search(r"On these texts, all negative: \d+% false alarms\.", shown)
    ended = attn(["separate", str(EXAMPLE), "--apply", str(file), "--expect", "measured.auroc > 0.9"])
    assert ended.code == 2 and "requires --label" in ended.err and ended.err.count("\n") == 1


def test_labels_are_whole_numbers_without_whitespace() -> None:
    rows = [{"text": f"hat={n}", "label": float(n % 2), "g": (" a", "a ", "b")[n % 3]} for n in range(6)]
    with LabelledFile(rows, LabelNames.of("label=1.0"), "g") as file:
        assert file.count() == 6 and file.values == ("0", "1") and file.groups == {"a": 4, "b": 2}
    rows = [{"text": "hat=", "label": label} for label in ("yes ", "yes", " no", "0.0", "0.5")]
    with LabelledFile(rows, LabelNames.of("label")) as file, pytest.raises(UserError) as refused:
        file.count()
    assert "(got yes (2), no (1), 0 (1), 0.5 (1))" in str(refused.value)


WRONG = {
    "text,label\na,1\nb,2\nc,3\n": "label must have exactly two values (got 1 (1), 2 (1), 3 (1))",
    "text,label\na,x\nb,y\n": "must name the positive value, such as label=y",
    "text,label\na,1\nb,\n": "label: is required, since it is the label column",
    "text,kind\na,1\nb,0\n": "must have a column label",
    "text,label,answer\na,1,b\nb,0,\n": "must have the text columns of the first text, text and answer (got",
    "text,label\n": "contains no texts",
}


@pytest.mark.parametrize("content", WRONG)
def test_invalid_files_are_refused_on_one_line(content: str, attn: Attn, tmp_path: Path) -> None:
    file = tmp_path / "texts.csv"
    file.write_text(content)
    ended = attn(["separate", str(file), "--label", "label"])
    assert ended.code in (1, 2) and WRONG[content] in ended.err, ended.err
    assert ended.err.count("\n") == 1


ROWS = [{"text": f"hat={number}", "label": number % 2, "g": number % 3} for number in range(12)]


def test_missing_columns_and_columns_with_the_text_are_refused(tiny: Pretrained) -> None:
    with pytest.raises(UserError, match=r"hold_out: must be a column of the texts \(no text has gg\)"):
        attncli.separate(tiny, ROWS, label="label", hold_out="gg")
    many = [{"text": f"hat={number}", "label": number % 2, "g": number} for number in range(11)]
    with pytest.raises(UserError, match=r"cannot be held out \(11 groups share 10 folds"):
        attncli.separate(tiny, many, label="label", hold_out="g")
    with pytest.raises(UserError, match="hold_out: must not be answer"):
        attncli.separate(tiny, ROWS, label="label", hold_out="answer")
    with pytest.raises(UserError, match="label: must not be text"):
        attncli.separate(tiny, ROWS, label="text")
    named = [{"prompt": row["text"], "label": row["label"]} for row in ROWS]
    with pytest.raises(UserError) as refused:
        attncli.separate(tiny, named, label="label")
    assert refused.value.lines == ("texts:1: must have a text column (it has prompt, label)",)


def test_equal_and_empty_texts_are_refused(tiny: Pretrained) -> None:
    alike = [{"text": "hat=", "label": number % 2} for number in range(12)]
    with pytest.raises(UserError, match="texts: must differ"):
        attncli.separate(tiny, alike, label="label")
    for part in ({"text": "<< >>"}, {"text": "hat", "answer": " "}):
        with pytest.raises(UserError, match="must hold at least one token"):
            attncli.separate(tiny, [{**row, **part} for row in ROWS], label="label")
    with pytest.raises(UserError, match="permutations"):
        attncli.separate(tiny, ROWS, label="label", permutations=0)
    one = [{**row, "text": "h" if number == 3 else row["text"]} for number, row in enumerate(ROWS)]
    result = attncli.separate(tiny, one, label="label", hold_out="g", permutations=3)
    assert result.num_texts == 12 and "loss" in {row.detector for row in result.detectors}


def test_numpy_labels_and_other_columns_are_read(tiny: Pretrained) -> None:
    plain = [{**row, "g": number // 8} for number, row in enumerate(ROWS * 2)]
    rows = [
        {**row, "label": np.int64(row["label"]), "g": np.int64(row["g"]), "day": date(2026, 1, 2)}
        for row in plain
    ]
    ours, theirs = (
        attncli.separate(tiny, each, label="label", hold_out="g", permutations=3) for each in (plain, rows)
    )
    assert ours.held_out == theirs.held_out
    assert any("several groups" in note for note in ours.notes)
    assert {row.detector for row in ours.detectors} >= {"bag of tokens", "bag of words"}


def test_csv_is_read_from_a_pipe(attn: Attn, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = "g,label,text\n" + "".join(f"{row['g']},{row['label']},{row['text']}\n" for row in ROWS)
    writer = Thread(target=pipe.write_text, args=(text,))
    writer.start()
    flags = ["--label", "label", "--hold-out", "g", "--permutations", "3", "--format", "json"]
    ended = attn(["separate", str(pipe), *flags])
    writer.join()
    assert ended.code == 0, ended.err
    assert len(json.loads(ended.out)["statistics"]["predictions"]) == 12


def test_missing_and_contradictory_settings_are_refused(attn: Attn, tmp_path: Path) -> None:
    copy = tmp_path / "copy.csv"
    copy.write_bytes(EXAMPLE.read_bytes())
    assert "needs --label" in attn(["separate", str(copy)]).err
    ended = attn(["separate", str(copy), "--apply", str(copy), "--hold-out", "lines"])
    assert "cannot be combined with --apply" in ended.err
