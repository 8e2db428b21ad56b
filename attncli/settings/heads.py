"""The settings of the survey of a model's heads."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, create_model

from attncli.arguments import head_name_without_stack, head_names_without_stack
from attncli.core.names import (
    HEAD_PATTERNS,
    HEAD_STATISTICS,
    OF_PICTURES,
    PATTERNS,
    ROW_STATISTICS,
    STARTS_SPECIAL,
    WITH_SHARE,
    WITHOUT_FIRST,
    named_head,
)
from attncli.records.surveys import SurveyedHead
from attncli.records.values import PLACES
from attncli.settings.fields import (
    Contradictions,
    Count,
    Everyday,
    Group,
    Size,
    TokenName,
    contradiction,
    in_group,
)
from attncli.settings.models import (
    AblatedSpec,
    ImageSpec,
    LookedFrom,
    RelationsSpec,
    SurveyTextSpec,
    WordsSpec,
)

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


Head = Annotated[str, BeforeValidator(head_name_without_stack)]
Heads = Annotated[str, BeforeValidator(_joined_heads)]
MOST_HEADS_SHOWN = 16
"""Maps over each of many pictures: more are too small to be looked at beside each other."""

if TYPE_CHECKING:

    class PlacesSpec(SurveyTextSpec):
        to: list[str]
else:
    # `from` cannot be written as the name of a field.
    PlacesSpec = create_model(
        "PlacesSpec",
        __base__=SurveyTextSpec,
        **{
            "from": (
                Annotated[
                    LookedFrom, Group("Output"), Everyday("with --to: only the queries at these tokens")
                ],
                Field(
                    [],
                    description="with `to`: only the queries at these tokens: a text as cat, cat#2 for the "
                    "second of them, a position as 5 or -1, or last; of a picture, where heads look from: a "
                    "patch as r10c12, a point as 0.6,0.4 (default: [CLS], else the mean over all queries)",
                ),
            ),
            "to": (
                Annotated[list[TokenName], Group("Output"), Everyday("heads by the weight on these tokens")],
                Field(
                    [],
                    description="heads by the weight on these tokens, named as in `from`: from_to_weight, "
                    "summed over them, mean over the queries",
                ),
            ),
        },
    )


class HeadsSpec(PlacesSpec, RelationsSpec, WordsSpec, AblatedSpec, ImageSpec):
    experiment = "heads"
    title = "What each head looks at"
    surveys_pictures = True
    drawn_maps = "auto"
    module = "attncli.commands.heads"
    model_module = module
    examples = (
        "attn heads",
        'attn heads --model ./my-model --sentence "the cat sat because it was tired" --from it --to cat',
        "attn heads --model ./my-model --texts sentences.txt",
        "attn heads --model ./my-model --texts sentences.txt --head 5:11 --examples 3 --sort induction",
        "attn heads --model ./my-model --relations treebank.conllu",
        "attn heads --model ./my-model --file book.txt --truncate --sort entropy --top 10",
        "attn heads --model ./my-model --statistic previous_token --precision 2",
        "attn heads --model ./my-model --file book.txt --skip-sink 1 -o heads.csv",
    )
    off_keys = frozenset(
        {
            "texts",
            "text_group",
            "relations",
            "from",
            "to",
            "ascending",
            "table",
            "head",
            "num_examples",
            "pattern",
        }
    )
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
        "cross): weights up to 128 tokens, beyond that maps of blocks of weights (default in pictures: auto)",
    )
    full: Annotated[list[Head], AfterValidator(lambda names: list(dict.fromkeys(names)))] = Field(
        [], description="heads whose whole weights are kept beyond 128 tokens, as LAYER:HEAD"
    )
    pattern: Annotated[
        PatternName | None,
        BeforeValidator(_in_words),
        Everyday("the heads of one pattern: induction, previous-token, ..."),
    ] = Field(None, description="show only the heads of this pattern, the strongest first")
    sort: Annotated[
        HeadStatistic | None, Everyday("the largest first: induction, entropy, distance, ...")
    ] = Field(
        default_factory=lambda data: (
            "from_to_weight"
            if data["to"]
            else HEAD_PATTERNS[data["pattern"]].statistic
            if data["pattern"]
            else None
        ),
        description=f"show the heads with the largest of this statistic first: {', '.join(HEAD_STATISTICS)}",
    )
    ascending: bool = Field(False, description="with `sort`: the smallest first")
    top: Size | None = Field(None, description="show only the first N heads")
    table: Annotated[bool, Everyday("every statistic of every head")] = Field(
        False, description="show every statistic of every head"
    )
    statistic: Annotated[HeadStatistic | None, Everyday("one statistic as a grid of layers and heads")] = (
        Field(None, description="show one of them as a grid of layers and heads instead of the table")
    )

    head: Annotated[
        Heads | None, Everyday("with --texts and --examples one head; of a folder of pictures those drawn")
    ] = Field(
        None,
        description="one head, as LAYER:HEAD, whose examples in texts are shown (with `num_examples`); of "
        "many pictures the heads, LAYER:HEAD,..., whose maps are drawn over each",
    )
    num_examples: Annotated[Size | None, Everyday("with --head: N texts where --sort is strongest")] = Field(
        None,
        description="with `head`: show N texts, and the query in each, where `sort` is strongest, N where "
        "it is weakest and N where it is typical",
    )

    def chosen_head(self) -> tuple[int, int]:
        """Layer and head of the setting `head`."""
        _, layer, head = named_head(str(self.head))
        return layer, head

    def heads_shown(self) -> list[str]:
        """The heads whose maps are drawn over each of many pictures, where some are named."""
        return [] if self.head is None else self.head.split(",")

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        if settings.get("relations"):
            return "--show all", "-o relations.html"
        if settings.get("head"):
            return "--show all", "-o examples.html"
        if settings.get("statistic"):
            return "--show all", "--format heatmap", "-o page.html"
        if settings.get("image"):
            has_words = settings.get("sentence") or settings.get("file")
            first = ("--sort entropy", "--to WORD") if has_words else ("--sort neighbour", "--from r1c1")
            return *first, "--table", "-o page.html"
        return cls.next_steps

    def sought(self) -> dict[str, list[str]]:
        """The tokens whose weights are asked for, of the queries and of the keys."""
        return {"from": getattr(self, "from"), "to": self.to}

    def names_rest(self) -> bool:
        """Whether heads that look at the first key are named by the rest of their weight, too."""
        return not (self.skip_sink or self.weighted or self.image)

    def reads_many_texts(self) -> bool:
        return super().reads_many_texts() or self.relations is not None or self.reads_pictures()

    def single_statistics(self) -> tuple[str, ...]:
        if self.relations is not None:
            return in_group("sentences", "num_sentences", "num_words", "num_relations")
        if self.head is not None:
            return in_group("head", "num_texts", "mean", "lower", "upper", "median")
        of_model = in_group("model", "sink_rate", "sink_threshold")
        if self.texts is not None or self.reads_pictures():
            of_model += in_group("texts", "num_texts", "num_tokens")
        if self.statistic is not None:
            return (self.statistic, *of_model)
        of_heads = self._of_heads()
        of_patterns = dict.fromkeys((*(one.statistic for one in HEAD_PATTERNS.values()), *PATTERNS))
        rows = (f"{name}.rows" for name in of_patterns if name in of_heads)
        rest: tuple[str, ...] = ()
        if self.names_rest():
            named = [one.statistic for one in HEAD_PATTERNS.values() if one.statistic in of_heads]
            rest = in_group(WITHOUT_FIRST, *named, *(f"{name}.rows" for name in named), STARTS_SPECIAL)
        return (*of_heads, *rows, STARTS_SPECIAL, *rest, *of_model)

    def _of_heads(self) -> tuple[str, ...]:
        """The statistics that each head has a number of."""
        asked: dict[str, object] = {
            "value_norm": self.weighted,
            "induction_stripe": self.probe,
            "from_to_weight": self.sought()["to"],
            **dict.fromkeys(("neighbour", "high_norm_mass"), self.image),
        }
        if self.image is not None:
            comparing = {name for name, known in ROW_STATISTICS.items() if known.positional} | {*PATTERNS}
            asked |= dict.fromkeys(comparing - {*OF_PICTURES}, False)
            asked |= {f"{name}_mul": asked.get(name, True) for name in WITH_SHARE}
        names = (name for name in SurveyedHead.kept_columns() if name not in PLACES)
        return tuple(name for name in names if asked.get(name, True))

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if self.ablate and self.weighted:
            yield contradiction("ablate", "cannot be combined with `weighted`", "weighted")
        if self.words and self.probe:
            yield contradiction("words", "needs `sentence`, `file` or `texts`: a probe has no words", "probe")
        for key in self.given("weighted", "rollout") if self.words else ():
            yield contradiction("words", f"cannot be combined with `{key}`, which is about tokens", key)
        if self.full and self.maps == "none":
            yield contradiction("full", "needs `maps` auto, self, cross or encoder", "maps")
        if self.rollout and self.image:
            yield contradiction("rollout", "stands in the report of every picture: leave it out", "image")
        if self.rollout and (self.probe or self.texts):
            yield contradiction("rollout", "needs `sentence` or `file`: it is about a text", "probe", "texts")
        if self.texts and self.maps != "none":
            yield contradiction("maps", "needs `sentence` or `file`: a map is of one text", "texts")
        if self.reads_pictures() and self.maps not in ("none", "auto"):
            yield contradiction("maps", "needs one picture: a map is of one", "image")
        yield from self._contradictions_of_examples()
        if self.ascending and self.sort is None:
            yield contradiction("ascending", "needs `sort`", "sort")
        if self.sought()["from"] and not self.sought()["to"] and self.image is None:
            yield contradiction("from", "needs `to`: without it every query's weights sum to 1", "to")
        if self.pattern and self.relations:
            yield contradiction("pattern", "is of statistics: leave `relations` out", "relations")
        if self.pattern == "adjacent patches" and not self.image:
            yield contradiction("pattern", "adjacent patches are of pictures: it needs `image`", "image")
        elif self.pattern and HEAD_PATTERNS[self.pattern].statistic not in self._of_heads():
            yield contradiction("pattern", f"{self.pattern} is of texts, not of pictures", "image")
        for key in ("pattern", "sort", "top", "ascending", "table"):
            if self.statistic and self.given(key):
                yield contradiction(
                    key, "cannot be combined with `statistic`, a grid of all heads", "statistic"
                )
        for key in ("sort", "statistic"):
            name = str(getattr(self, key))
            if self.image and getattr(self, key) and name not in self._of_heads():
                yield contradiction(key, f"{name} is of texts: it compares what stands before", "image")
            elif not self.image and name in ("neighbour", "high_norm_mass") and self.given(key):
                yield contradiction(key, f"{name} needs `image`", "image")
            if getattr(self, key) == "induction_stripe" and not self.probe:
                yield contradiction(key, "induction_stripe needs `probe` repeated", "sentence", "file")
            if getattr(self, key) == "value_norm" and not self.weighted:
                yield contradiction(key, "value_norm needs `weighted`", "weighted")
            if getattr(self, key) == "from_to_weight" and not self.sought()["to"]:
                yield contradiction(key, "from_to_weight needs `to`", "to")

    def _contradictions_of_examples(self) -> Contradictions:
        """One head on many texts: what has a number in every row."""
        if self.head is not None and self.reads_pictures():
            yield from self._contradictions_of_maps()
            return
        if self.head is not None and "," in self.head:
            yield contradiction("head", f"must be one head, but for many pictures (got {self.head})")
            return
        if (self.head is None) != (self.num_examples is None):
            if self.head is None:
                yield contradiction("num_examples", "needs `head`", "head")
            else:
                _, layer, head = named_head(self.head)
                lacking = "`num_examples`" if self.texts else "`texts` and `num_examples`"
                on_text = f"attn self --model MODEL --head {layer}:{head} shows it on one text"
                yield contradiction("head", f"needs {lacking}: {on_text}", "num_examples")
        elif self.head is not None:
            if self.texts is None:
                yield contradiction("num_examples", "needs `texts`", "texts", "head")
            if self.sort is None:
                yield contradiction(
                    "num_examples",
                    "needs `sort`: a statistic of a row, as previous_token or entropy",
                    "sort",
                    "head",
                )
            elif self.sort not in (*ROW_STATISTICS, *PATTERNS):
                yield contradiction("sort", f"{self.sort} is not a statistic of a row", "num_examples")
            for key in self.given("weighted", "ascending", "top", "table", "statistic", "pattern"):
                yield contradiction(key, "cannot be combined with examples of one head", "num_examples")

    def _contradictions_of_maps(self) -> Contradictions:
        """Heads that are named for the maps of many pictures."""
        if self.num_examples is not None:
            yield contradiction("num_examples", "needs `texts`", "texts", "head")
        if (count := len(self.heads_shown())) > MOST_HEADS_SHOWN:
            yield contradiction("head", f"must be at most {MOST_HEADS_SHOWN} heads here (got {count})")
        for key in self.given("sort", "top", "ascending", "pattern", "statistic"):
            yield contradiction(key, "cannot be combined with `head`, which names the heads", "head")
