"""The settings of the survey of a model's heads."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, create_model

from attncli.core.names import (
    EVEN,
    HEAD_PATTERNS,
    HEAD_STATISTICS,
    IN_TIME,
    ON_GRIDS,
    PATTERNS,
    ROW_STATISTICS,
    STARTS_SPECIAL,
    WITH_SHARE,
    WITHOUT_FIRST,
    ActivationNames,
)
from attncli.index import readings
from attncli.records.arguments import head_name_without_stack, head_names_without_stack
from attncli.settings.fields import (
    Contradictions,
    Count,
    Everyday,
    Heading,
    Size,
    TokenName,
    contradiction,
    in_group,
)
from attncli.settings.models import (
    FILE,
    ON_GRID,
    AblatedSpec,
    EncodedTextSpec,
    LookedFrom,
    WordsSpec,
    files_read,
)
from attncli.settings.readings import reads
from attncli.system.files import STORE_SUFFIXES

if TYPE_CHECKING:
    HeadStatistic = str
    PatternName = str
else:
    HeadStatistic = Literal[HEAD_STATISTICS]
    PatternName = Literal[tuple(HEAD_PATTERNS)]


def _in_words(name: object) -> object:
    """`previous token` of `previous_token` or `previous-token`, as a shell takes it without quotes."""
    return name.replace("_", " ").replace("-", " ") if isinstance(name, str) else name


def _joined_heads(value: Any) -> str:
    """`11:4,3:1` of one head or of several, each once; ValueError for what is no head."""
    return ",".join(head_names_without_stack(value))


def _each_once(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


HeadSetting = Annotated[str, BeforeValidator(head_name_without_stack)]
HeadsSetting = Annotated[str, BeforeValidator(_joined_heads)]
MOST_HEADS_SHOWN = 16
"""Maps over each of many files: more are too small to be looked at beside each other."""

GRIDS = "|".join(kind.setting for kind in readings().values() if kind.on_grid)
MEASURED_WITH: Mapping[str, str] = {
    **dict.fromkeys(("neighbour", "high_norm_mass"), GRIDS),
    **dict.fromkeys(IN_TIME, "|".join(kind.setting for kind in readings().values() if kind.in_time)),
    "induction_stripe": "probe",
    "value_norm": "weighted",
    "from_to_weight": "to",
    "others_to_weight": "from",
}
"""The settings without which a statistic is not measured."""
OF_PROBE = "sort=induction_stripe, statistic=induction_stripe"
"""The probe is what is read without anything else, so that nothing else goes with these."""

if TYPE_CHECKING:

    class PlacesSpec(EncodedTextSpec):
        to: list[str]
else:
    # `from` cannot be written as the name of a field.
    PlacesSpec = create_model(
        "PlacesSpec",
        __base__=EncodedTextSpec,
        **{
            "from": (
                Annotated[
                    LookedFrom,
                    Heading("Output"),
                    Everyday("with --to, the tokens that look: cat, cat#2, 5, -1 or last"),
                ],
                Field(
                    [],
                    description="with `to`: only the queries at these tokens: cat, cat#2 for the second of "
                    "them, a position as 5 or -1, or last; of a picture, who looks: a patch as r10c12, a "
                    "point as 0.6,0.4 (default: [CLS], else the mean over all)",
                ),
            ),
            "to": (
                Annotated[
                    list[TokenName],
                    Heading("Output"),
                    Everyday("heads by the weight on these tokens, named likewise"),
                ],
                Field(
                    [],
                    description="heads by the weight on these tokens, named as in `from`: from_to_weight, "
                    "summed over them, mean over the queries",
                ),
            ),
        },
    )


@reads()
class HeadsSpec(PlacesSpec, WordsSpec, AblatedSpec):
    experiment = "heads"
    title = "What each head looks at"
    surveys_files = True
    drawn_maps = "auto"
    examples = (
        "attn heads",
        'attn heads --model ./my-model --sentence "the cat sat because it was tired" --from it --to cat',
        "attn heads --model ./my-model --texts sentences.txt",
        "attn heads --model ./my-model --texts sentences.txt --head 5:11 --examples 3 --sort induction",
        "attn heads --model ./my-model --relations treebank.conllu",
        "attn heads --model ./my-model --pairs contacts.jsonl --symmetric --apart 6",
        "attn heads --model ./whisper --sound talk.wav --words",
        "attn heads --model ./my-model --file book.txt --truncate --sort entropy --top 10",
        "attn heads --model ./my-model --statistic previous_token --precision 2",
        "attn heads --model ./my-model --file book.txt --skip-sink 1 -o heads.csv",
    )
    needs: ClassVar[Mapping[str, str]] = {
        "ascending": "sort",
        "from": f"to|{GRIDS}",
        **{
            f"{key}={name}": needed
            for key in ("sort", "statistic")
            for name, needed in MEASURED_WITH.items()
            if needed != "probe"
        },
        **{
            f"pattern={name}": MEASURED_WITH[pattern.statistic]
            for name, pattern in HEAD_PATTERNS.items()
            if pattern.statistic in MEASURED_WITH
        },
    }
    excludes: ClassVar[Mapping[str, str]] = {
        "statistic": "pattern, sort, ascending, top, table",
        "ablate": "names",
        "words": "names",
        "weighted": "ablate, words",
        "rollout": "words",
        ON_GRID: "skip_sink, weighted, rollout",
        "probe": "rollout",
        **dict.fromkeys(("sentence", "file", FILE), OF_PROBE),
        "texts": f"rollout, maps, names, {OF_PROBE}",
    }
    off_keys = frozenset(
        {
            "texts",
            "text_group",
            "from",
            "to",
            "ascending",
            "table",
            "head",
            "pattern",
            "names",
        }
    )
    parts_elsewhere: ClassVar[Mapping[str, str]] = {"weights": "--maps self shows those of a text"}
    settings_elsewhere: ClassVar[Mapping[str, str]] = {
        "layer": ("shows all layers: attn multihead --model MODEL --layer {value} shows the heads of one"),
        "explain": ("surveys: attn self --model MODEL --head LAYER:HEAD --explain is for one head"),
        "checkpoints": "surveys one model: attn watch {value} shows heads over checkpoints",
    }
    next_steps = ("--sort previous_token", "--to WORD", "--table", "-o page.html")
    group = "Output"
    heading_keys = ("file", "model", "seed")

    skip_sink: Count = Field(
        0, description="leave out the first N keys of all numbers, the other weights renormalised"
    )
    weighted: bool = Field(
        False, description="weights times the norm of what each value adds to the output, renormalised"
    )
    rollout: bool = Field(False, description="also show how attention adds up over the layers")
    maps: Literal["none", "auto", "self", "cross", "encoder"] = Field(
        "none",
        description="keep what each head looks at, of this kind of attention (auto: self, of a caption "
        "cross): weights up to 128 tokens, beyond that maps of blocks (default in pictures: auto)",
    )
    full: Annotated[list[HeadSetting], AfterValidator(_each_once)] = Field(
        [], description="heads whose whole weights are kept beyond 128 tokens, as LAYER:HEAD"
    )
    pattern: Annotated[
        PatternName | None,
        BeforeValidator(_in_words),
        Everyday("the heads of one pattern: induction, previous-token, ..."),
    ] = Field(None, description="show only the heads of this pattern, the strongest first")
    sort: Annotated[
        HeadStatistic | None,
        Everyday("the largest first: induction, entropy, distance, ..."),
    ] = Field(
        default_factory=lambda data: (
            "from_to_weight"
            if data.get("to")
            else HEAD_PATTERNS[data["pattern"]].statistic
            if data.get("pattern")
            else None
        ),
        description=f"show the heads with the largest of this statistic first: {', '.join(HEAD_STATISTICS)}",
    )
    ascending: bool = Field(False, description="with `sort`: the smallest first")
    top: Size | None = Field(None, description="show only the first N heads")
    table: Annotated[bool, Everyday("every statistic of every head")] = Field(
        False, description="show every statistic of every head"
    )
    statistic: Annotated[
        HeadStatistic | None,
        Everyday("one statistic as a grid of layers and heads"),
    ] = Field(None, description="show one of them as a grid of layers and heads instead of the table")

    head: Annotated[
        HeadsSetting | None,
        Everyday("with --texts and --examples one head; of a folder of pictures those drawn"),
    ] = Field(
        None,
        description="with `num_examples`: the head, as LAYER:HEAD; of many pictures the heads, "
        "LAYER:HEAD,..., that are drawn over each",
    )

    names: Annotated[ActivationNames | None, Heading("Output")] = Field(
        None,
        description="with -o FILE.safetensors or FILE.npz: query, key, value, scores, weights and output of "
        "every layer, by the names of this tool: transformer_lens (blocks.3.attn.hook_pattern), nnsight "
        "(the path of the module)",
    )

    def heads_shown(self) -> list[str]:
        """The heads whose maps are drawn over each of many files, where some are named."""
        return [] if self.head is None else self.head.split(",")

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        if settings.get("statistic"):
            return "--show all", "--format heatmap", "-o page.html"
        for _, kind, _ in files_read(settings):
            has_words = settings.get("sentence") or settings.get("file")
            first = ("--sort neighbour", "--from r1c1") if kind.on_grid else ("--sort max_weight",)
            first = ("--sort entropy", "--to WORD") if kind.on_grid and has_words else first
            return *first, "--table", "-o page.html"
        # Random tokens have no words to look for, and a store has what was looked for.
        texts = Path(str(settings.get("texts")))
        has_words = not (settings.get("probe") or texts.suffix.lower() in STORE_SUFFIXES)
        return tuple(step for step in cls.next_steps if step != "--to WORD" or has_words)

    def sought(self) -> dict[str, list[str]]:
        """The tokens whose weights are asked for, of the queries and of the keys."""
        return {"from": getattr(self, "from"), "to": self.to}

    def names_rest(self) -> bool:
        """Whether heads that look at the first key are named by the rest of their weight, too."""
        return not (self.skip_sink or self.weighted or self.reads_grid)

    def shows_signed_heads(self) -> bool:
        """Whether heads of layers without a softmax are shown, too: nothing is asked that these lack."""
        lacking = (self.skip_sink, self.weighted, self.words, self.read_file, self.pattern, self.sort)
        return not any((*lacking, self.statistic, self.top, *self.sought().values()))

    def reads_many_texts(self) -> bool:
        return super().reads_many_texts() or self.reads_many_files()

    def draws_many(self) -> bool:
        """True if maps are drawn over each of many files."""
        return self.reads_grid and self.reads_many_files()

    def single_statistics(self) -> tuple[str, ...]:
        of_model = in_group("model", "sink_rate", "sink_threshold")
        if self.reads_many_texts():
            of_model += in_group("texts", "num_texts", "num_tokens")
        if self.statistic is not None:
            return (self.statistic, *of_model)
        of_heads = self._of_heads()
        of_patterns = dict.fromkeys((*(pattern.statistic for pattern in HEAD_PATTERNS.values()), *PATTERNS))
        rows = [f"{name}.rows" for name in of_patterns if name in of_heads]
        even = [f"{name}.even" for name in EVEN if name in of_heads]
        rest: tuple[str, ...] = ()
        if self.names_rest():
            named = [pattern.statistic for pattern in HEAD_PATTERNS.values() if pattern.statistic in of_heads]
            of_rest = (*(f"{name}.rows" for name in named), *even, STARTS_SPECIAL)
            rest = in_group(WITHOUT_FIRST, *named, *of_rest)
        return (*of_heads, *rows, *even, STARTS_SPECIAL, *rest, *of_model)

    def _of_heads(self) -> tuple[str, ...]:
        """The statistics that each head has a number of."""
        asked = {name: self.has(needed) for name, needed in MEASURED_WITH.items()}
        if self.reads_grid:
            comparing = {name for name, known in ROW_STATISTICS.items() if known.positional} | {*PATTERNS}
            asked |= dict.fromkeys(comparing - {*ON_GRIDS}, False)
            asked |= {f"{name}_mul": asked.get(name, True) for name in WITH_SHARE}
        from attncli.records.surveys import SurveyedHead  # with numpy, which help does without

        kept = (name for name, column in SurveyedHead.columns.items() if column.is_in_stores)
        return tuple(name for name in kept if asked.get(name, True))

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if self.full and self.maps == "none":
            yield contradiction("full", "needs `maps` auto, self, cross or encoder", "maps")
        if self.read_file is not None and self.read_file.many:
            what, kind, _ = self.read_file
            if self.maps not in ("none", "auto"):
                yield contradiction("maps", f"needs one {what}: a map is of one", kind.setting)
            for key in self.given("sentence", "file", "full") if kind.is_transcribed else ():
                yield contradiction(key, f"needs one {what}: many have words of their own", kind.setting)
        yield from self._contradictions_of_heads()
        yield from self._contradictions_of_statistics()

    def _contradictions_of_heads(self) -> Contradictions:
        """Heads are named where their maps are drawn: over many files."""
        if self.head is None:
            return
        if self.draws_many():
            if (count := len(self.heads_shown())) > MOST_HEADS_SHOWN:
                yield contradiction("head", f"must be at most {MOST_HEADS_SHOWN} heads here (got {count})")
            for key in self.given("pattern", "sort", "ascending", "top", "statistic"):
                yield contradiction(key, "cannot be combined with `head`, which names the heads", "head")
        elif "," in self.head:
            yield contradiction("head", f"must be one head, but for many pictures (got {self.head})")
        else:
            lacking = "`num_examples`" if self.texts else "`texts` and `num_examples`"
            on_text = f"attn self --model MODEL --head {self.head} shows it on one text"
            yield contradiction("head", f"needs {lacking}: {on_text}", "texts")

    def _contradictions_of_statistics(self) -> Contradictions:
        """Statistics that are not measured of what is read, or not with these settings."""
        measured, file = self._of_heads(), self.read_file
        for key in self.given("pattern", "sort", "statistic"):
            name = str(getattr(self, key))
            statistic = HEAD_PATTERNS[name].statistic if key == "pattern" else name
            if file is not None and statistic not in {*measured, *MEASURED_WITH}:
                yield contradiction(key, f"{name} is of texts, not of {file.what}s", file.kind.setting)
