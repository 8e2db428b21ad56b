"""The settings of `attn heads`, which surveys a model's heads."""

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
    """Return a name in words: `previous token` for `previous_token` or `previous-token`."""
    return name.replace("_", " ").replace("-", " ") if isinstance(name, str) else name


def _joined_heads(value: Any) -> str:
    """Return the distinct heads as `11:4,3:1`. Raises ValueError for an invalid head."""
    return ",".join(head_names_without_stack(value))


def _each_once(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


HeadSetting = Annotated[str, BeforeValidator(head_name_without_stack)]
HeadsSetting = Annotated[str, BeforeValidator(_joined_heads)]
MAX_DRAWN_HEADS = 16
"""The largest number of heads drawn over each of many files: more maps would be too small to compare."""

GRIDS = "|".join(kind.setting for kind in readings().values() if kind.on_grid)
MEASURED_WITH: Mapping[str, str] = {
    **dict.fromkeys(("neighbour", "high_norm_mass"), GRIDS),
    **dict.fromkeys(IN_TIME, "|".join(kind.setting for kind in readings().values() if kind.in_time)),
    "induction_stripe": "probe",
    "value_norm": "weighted",
    "from_to_weight": "to",
    "others_to_weight": "from",
}
"""The settings that a statistic needs to be measured."""
PROBE_ONLY = "sort=induction_stripe, statistic=induction_stripe"
"""The probe is read only if there is no other input, so these settings exclude any input."""

if TYPE_CHECKING:

    class PlacesSpec(EncodedTextSpec):
        to: list[str]
else:
    # `from` is a keyword, so a field cannot have this name in source code.
    PlacesSpec = create_model(
        "PlacesSpec",
        __base__=EncodedTextSpec,
        **{
            "from": (
                Annotated[
                    LookedFrom,
                    Heading("Output"),
                    Everyday("with --to: use only these queries, such as cat or 5"),
                ],
                Field(
                    [],
                    description="with `to` or `image`: use only the queries at these tokens: cat, cat#2 for "
                    "its second occurrence, a position such as 5 or -1, or last; in a picture, a patch such "
                    "as r10c12 or a point such as 0.6,0.4 (default: all; in a picture without `to`, [CLS] "
                    "if there is one)",
                ),
            ),
            "to": (
                Annotated[
                    list[TokenName],
                    Heading("Output"),
                    Everyday("sort heads by their weight on these tokens"),
                ],
                Field(
                    [],
                    description="sort heads by from_to_weight, their weight on these tokens (named as in "
                    "`from`), summed over the tokens and averaged over the queries",
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
        **dict.fromkeys(("sentence", "file", FILE), PROBE_ONLY),
        "texts": f"rollout, maps, names, {PROBE_ONLY}",
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
    parts_elsewhere: ClassVar[Mapping[str, str]] = {"weights": "use --maps self to see the weights of a text"}
    settings_elsewhere: ClassVar[Mapping[str, str]] = {
        "layer": (
            "shows all layers: use attn multihead --model MODEL --layer {value} to see the heads of one layer"
        ),
        "explain": (
            "surveys all heads: use attn self --model MODEL --head LAYER:HEAD --explain to explain one head"
        ),
        "checkpoints": "surveys a single model: use attn watch {value} to see heads over checkpoints",
    }
    next_steps = ("--sort previous_token", "--to WORD", "--table", "-o page.html")
    group = "Output"
    heading_keys = ("file", "model", "seed")

    skip_sink: Count = Field(
        0, description="exclude the first N keys from all statistics and renormalise the other weights"
    )
    weighted: bool = Field(
        False,
        description="multiply the weights by the norm of each value's contribution to the output and "
        "renormalise them",
    )
    rollout: bool = Field(False, description="also show attention rollout over the layers")
    maps: Literal["none", "auto", "self", "cross", "encoder"] = Field(
        "none",
        description="keep a map of each head for this kind of attention (auto: self, or cross for captions): "
        "all weights for up to 128 tokens, a map of blocks for more (default for pictures: auto)",
    )
    full: Annotated[list[HeadSetting], AfterValidator(_each_once)] = Field(
        [], description="keep the full weights of these heads (LAYER:HEAD,...), even beyond 128 tokens"
    )
    pattern: Annotated[
        PatternName | None,
        BeforeValidator(_in_words),
        Everyday("show only heads with this pattern, such as induction"),
    ] = Field(None, description="show only the heads of this pattern, strongest first")
    sort: Annotated[
        HeadStatistic | None,
        Everyday("sort heads by induction, entropy, distance, ..."),
    ] = Field(
        default_factory=lambda data: (
            "from_to_weight"
            if data.get("to")
            else HEAD_PATTERNS[data["pattern"]].statistic
            if data.get("pattern")
            else None
        ),
        description=f"sort the heads by this statistic, largest first: {', '.join(HEAD_STATISTICS)}",
    )
    ascending: bool = Field(False, description="with `sort`: the smallest first")
    top: Size | None = Field(None, description="show only the first N heads")
    table: Annotated[bool, Everyday("show every statistic of every head")] = Field(
        False, description="show every statistic of every head"
    )
    statistic: Annotated[
        HeadStatistic | None,
        Everyday("show a statistic as a grid of layers and heads"),
    ] = Field(None, description="show a statistic as a grid of layers and heads instead of the table")

    head: Annotated[
        HeadsSetting | None,
        Everyday("the head for --examples, or the heads to draw on pictures"),
    ] = Field(
        None,
        description="with `num_examples`: the head LAYER:HEAD; with many pictures: the heads LAYER:HEAD,... "
        "to draw over each picture",
    )

    names: Annotated[ActivationNames | None, Heading("Output")] = Field(
        None,
        description="with -o FILE.safetensors or FILE.npz: save query, key, value, scores, weights and "
        "output of every layer under the names of this tool: transformer_lens (blocks.3.attn.hook_pattern) "
        "or nnsight (the module's path)",
    )

    def drawn_heads(self) -> list[str]:
        """Return the heads whose maps are drawn over each of many files, if any are named."""
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
        # Random tokens contain no words to search for, and a store's numbers are already computed.
        texts = Path(str(settings.get("texts")))
        has_words = not (settings.get("probe") or texts.suffix.lower() in STORE_SUFFIXES)
        return tuple(step for step in cls.next_steps if step != "--to WORD" or has_words)

    def sought(self) -> dict[str, list[str]]:
        """Return the query and key tokens whose weights are requested."""
        return {"from": getattr(self, "from"), "to": self.to}

    def measures_rest(self) -> bool:
        """Return True if heads that look at the first key are also classified by their remaining weights."""
        return not (self.skip_sink or self.weighted or self.reads_grid)

    def shows_signed_heads(self) -> bool:
        """Return True if heads of layers without a softmax are also shown: no setting needs a softmax."""
        softmax_settings = (
            self.skip_sink,
            self.weighted,
            self.words,
            self.read_file,
            self.pattern,
            self.sort,
        )
        return not any((*softmax_settings, self.statistic, self.top, *self.sought().values()))

    def reads_many_texts(self) -> bool:
        return super().reads_many_texts() or self.reads_many_files()

    def draws_many(self) -> bool:
        """Return True if maps are drawn over each of many files."""
        return self.reads_grid and self.reads_many_files()

    def single_statistics(self) -> tuple[str, ...]:
        model_names = in_group("model", "sink_rate", "sink_threshold")
        if self.reads_many_texts():
            model_names += in_group("texts", "num_texts", "num_tokens")
        if self.statistic is not None:
            return (self.statistic, *model_names)
        head_names = self._head_statistics()
        pattern_names = [pattern.statistic for pattern in HEAD_PATTERNS.values()]
        rows = [f"{name}.rows" for name in dict.fromkeys((*pattern_names, *PATTERNS)) if name in head_names]
        even = [f"{name}.even" for name in EVEN if name in head_names]
        remainder: tuple[str, ...] = ()
        if self.measures_rest() and not self.reads_many_texts():
            measured = [name for name in pattern_names if name in head_names]
            remainder = in_group(
                WITHOUT_FIRST, *measured, *(f"{name}.rows" for name in measured), *even, STARTS_SPECIAL
            )
        return (*head_names, *rows, *even, STARTS_SPECIAL, *remainder, *model_names)

    def _head_statistics(self) -> tuple[str, ...]:
        """Return the statistics that are measured for each head."""
        measured = {name: self.has(needed) for name, needed in MEASURED_WITH.items()}
        if self.reads_grid:
            positional = {name for name, row in ROW_STATISTICS.items() if row.positional} | {*PATTERNS}
            measured |= dict.fromkeys(positional - {*ON_GRIDS}, False)
            measured |= {f"{name}_mul": measured.get(name, True) for name in WITH_SHARE}
        from attncli.records.surveys import SurveyedHead  # imports numpy, which help does not need

        stored = (name for name, column in SurveyedHead.columns.items() if column.is_in_stores)
        return tuple(name for name in stored if measured.get(name, True))

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if self.full and self.maps == "none":
            yield contradiction("full", "needs `maps` auto, self, cross or encoder", "maps")
        if self.read_file is not None and self.read_file.many:
            what, kind, _ = self.read_file
            if self.maps not in ("none", "auto"):
                yield contradiction(
                    "maps", f"needs a single {what}, because a map shows only one", kind.setting
                )
            for key in self.given("sentence", "file", "full") if kind.is_transcribed else ():
                yield contradiction(
                    key, f"needs a single {what}, because each {what} has its own words", kind.setting
                )
        yield from self._contradictions_of_heads()
        yield from self._contradictions_of_statistics()

    def _contradictions_of_heads(self) -> Contradictions:
        """Yield contradictions involving `head`, which names heads for examples or maps over many files."""
        if self.head is None:
            return
        if self.draws_many():
            if (count := len(self.drawn_heads())) > MAX_DRAWN_HEADS:
                yield contradiction("head", f"must be at most {MAX_DRAWN_HEADS} heads (got {count})")
            for key in self.given("pattern", "sort", "ascending", "top", "statistic"):
                yield contradiction(
                    key, "cannot be combined with `head`, which already selects heads", "head"
                )
        elif "," in self.head:
            yield contradiction("head", f"must be one head unless there are many pictures (got {self.head})")
        else:
            needed = "`num_examples`" if self.texts else "`texts` and `num_examples`"
            on_text = f"use attn self --model MODEL --head {self.head} to see this head on one text"
            yield contradiction("head", f"needs {needed}: {on_text}", "texts")

    def _contradictions_of_statistics(self) -> Contradictions:
        """Yield a contradiction for each requested statistic that is not measured for this input."""
        measured, file = self._head_statistics(), self.read_file
        for key in self.given("pattern", "sort", "statistic"):
            name = str(getattr(self, key))
            statistic = HEAD_PATTERNS[name].statistic if key == "pattern" else name
            if file is not None and statistic not in {*measured, *MEASURED_WITH}:
                yield contradiction(
                    key, f"{name} is measured for texts, not for {file.what}s", file.kind.setting
                )
