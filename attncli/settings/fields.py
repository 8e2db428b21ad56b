"""What every Spec says of its experiment, the fields that several share, and how given settings become one.

All that is wrong with them is said at once, each mistake with the place that it came from.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations
from math import isfinite
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    get_args,
    get_origin,
)

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from attncli.core.names import POSITION
from attncli.errors import UserError, hints_for_first_lines, nearest
from attncli.records.arguments import MAX_SIZE as MAX_SIZE
from attncli.records.arguments import Count as Count
from attncli.records.arguments import Seed, error_message, is_unicode, plain_number, shown, token_names
from attncli.records.arguments import Size as Size

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from attncli.settings.pages import Page
    from attncli.settings.text import Texts

BYTES_PER_WEIGHT = 80
BYTES_PER_VECTOR_ENTRY = 80
BYTES_PER_PARAMETER = 8
BYTES_PER_TOP_KEY = 40
"""What a number takes at the peak, from scores to a printed report, measured and rounded up."""

SUMMARIES = ("mean", "min", "max")
"""What a run keeps of a statistic of rows, for each head."""

SCALES = ("sqrt", "fourth-root", "none")
MAX_SCALE = 1e38
"""float32 ends at 3.4e38."""


def _scale(value: Any) -> Any:
    if value in SCALES:
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"must be one of {', '.join(SCALES)} or a number (got {value})") from None
    if not isfinite(number):
        raise ValueError(f"must be a finite number (got {value})")
    if abs(number) > MAX_SCALE:
        raise ValueError(f"must be between {-MAX_SCALE:g} and {MAX_SCALE:g} (got {value})")
    return number


Scale = Annotated[
    Literal["sqrt", "fourth-root", "none"] | float,
    BeforeValidator(_scale),
    WithJsonSchema(
        {"anyOf": [{"enum": list(SCALES)}, {"type": "number", "minimum": -MAX_SCALE, "maximum": MAX_SCALE}]}
    ),
]


FLAGS = {"num_examples": "--examples"}
"""The flags that are not named after their keys; `examples` are a Spec's examples, for help."""
KEY = re.compile(r"`([a-z_]+)`")


def flag_name(key: str) -> str:
    """`--head-dim` for `head_dim`."""
    return FLAGS.get(key, f"--{key.replace('_', '-')}")


def in_words_of(text: str, *, flags: bool) -> str:
    """A description or an error for who types flags, or writes keys: these stand between backticks in it."""
    return KEY.sub(lambda key: flag_name(key[1]) if flags else key[1], text)


def _token_name(value: Any) -> str:
    (name,) = token_names([value])
    return name


TokenName = Annotated[str, BeforeValidator(_token_name), WithJsonSchema({"type": ["string", "integer"]})]
"""The name of a token; see `attncli.core.names`."""


def _position_or_name(value: Any) -> Any:
    return int(value) if isinstance(value, str) and POSITION.fullmatch(value) else value


PositionOrName = Annotated[
    int | str, BeforeValidator(_position_or_name), WithJsonSchema({"type": ["string", "integer"]})
]


class Heading(NamedTuple):
    """The heading of help for a field, where it differs from the heading of its class."""

    title: str


class Everyday(NamedTuple):
    """A setting whose flag is in everyday help, and its text there; empty: its description."""

    text: str = ""


class NoFlag(NamedTuple):
    """A setting without a flag, and the error if the flag is given all the same."""

    reason: str


CONFIG_ONLY = NoFlag("is a setting of config files alone: --config FILE with {key}: VALUE")


class Contradiction(NamedTuple):
    """Settings that are fine alone and make no sense together."""

    key: str
    message: str
    keys: frozenset[str]


def contradiction(key: str, message: str, *others: str) -> Contradiction:
    """A contradiction that is reported at `key` and involves the other keys, too.

    In its message keys stand between backticks: who typed flags reads their flags.
    """
    return Contradiction(key, message, frozenset((key, *others)))


Contradictions = Iterator[Contradiction]


class SettingCondition(NamedTuple):
    """A setting with any value, as `head`, or with one, as `method=swap`."""

    key: str
    value: str = ""

    @classmethod
    def of(cls, text: str) -> Self:
        """The condition that a text states."""
        return cls(*text.partition("=")[::2])

    def is_met(self, spec: "Spec") -> bool:
        """True if the setting has such a value. A switch that is off has none."""
        value = getattr(spec, self.key, None)
        if self.value:
            return str(value) == self.value
        return value is not None and value is not False and value != [] and value != ""

    def __str__(self) -> str:
        """The condition as messages state it."""
        return f"`{self.key}` {self.value}".rstrip()


def alternatives(text: str) -> list[SettingCondition]:
    """The conditions of `a|b=c`, of which one suffices."""
    return [SettingCondition.of(each) for each in text.split("|") if each]


ONE_HEAD = "--head LAYER:HEAD"
"""A next step whose head is the first that the report lists."""


def in_group(group: str, *names: str) -> tuple[str, ...]:
    """`group.name` for each name of a number; N stands for a place in a list, as in `sharpness.N.entropy`."""
    return tuple(f"{group}.{name}" for name in names)


def leaves_of(annotation: Any) -> Iterator[Any]:
    """The types and words of which an annotation is made."""
    parts = get_args(annotation)
    if not parts:
        yield annotation
    for part in parts:
        yield from leaves_of(part)


@cache
def takes_numbers(annotation: Any) -> bool:
    """Whether a setting is a number, or may be one, and is never a truth value."""
    leaves = [*leaves_of(annotation)]
    return (int in leaves or float in leaves) and bool not in leaves


class Extra(NamedTuple):
    """An extra of attncli that a setting needs, and the packages that it installs."""

    key: str
    name: str
    packages: tuple[str, ...]


class TextSource(NamedTuple):
    """Where a text comes from: the setting `key` itself, a file, or that many random vectors."""

    key: str
    text: str | None
    file: str | None = None
    num_tokens: int | None = None


def _of_list(field: "FieldInfo", value: Any) -> Any:
    """The items of a list that stand in a text, between commas, as in a flag."""
    is_text = isinstance(value, str) and get_origin(field.annotation) is list
    return [part.strip() for part in value.split(",")] if is_text else value


def _device(value: Any) -> Any:
    """ValueError for a device of PyTorch's that nothing is computed on, with what works in its place."""
    if not isinstance(value, str) or value in ("auto", "cpu", "cuda"):
        return value
    if value.startswith("cuda:") and value[5:].isdecimal():
        raise ValueError(
            f"must be cuda, the first card: CUDA_VISIBLE_DEVICES={value[5:]} makes that one the first"
        )
    if value in ("gpu", "nvidia"):
        raise ValueError(f"must be auto, cpu or cuda: cuda is a graphics card of NVIDIA's (got {value})")
    raise ValueError(f"must be auto, cpu or cuda (got {value:.60}): what has no cuda computes on cpu")


class Spec(BaseModel):
    """What the user asked of one experiment: validated, frozen, every default filled in; knows no torch."""

    # Most classes only hand their fields on: validators are built for those that are asked for something.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    experiment: ClassVar[str]
    # Command lines for help.
    examples: ClassVar[tuple[str, ...]]
    # Settings that a report leaves out while they have their defaults, those of base classes included.
    off_keys: ClassVar[frozenset[str]] = frozenset()
    # What settings need, or exclude; `a=b` is a setting with that value. Both add to those of base classes.
    # The settings, between commas, that say nothing without another one: `a|b` is one of two.
    needs: ClassVar[Mapping[str, str]] = {}
    # The settings, between commas, that a given one, or what `exclusion` knows, leaves no place for.
    excludes: ClassVar[Mapping[str, str]] = {}
    # What to type next, below a report: flags of the command, or values of its argument.
    next_steps: ClassVar[tuple[str, ...]] = ()
    # What shows a part of reports that those of the experiment may lack.
    parts_elsewhere: ClassVar[Mapping[str, str]] = {}
    # For settings that it lacks: what it does instead, and what does what was meant; {value} is the value.
    settings_elsewhere: ClassVar[Mapping[str, str]] = {}
    # What help names of what `--show` shows: of weights, rows and the like its reports have no others.
    parts: ClassVar[tuple[str, ...]] = ()
    # The setting whose value may stand on the command line without its flag.
    argument: ClassVar[str | None] = None
    # The heading of help for the fields of this class.
    group: ClassVar[str] = "Options"
    # The settings that the first line of a report shows, in this order.
    heading_keys: ClassVar[tuple[str, ...]] = ("seed",)
    # The name of the experiment in the title of a picture, by default `experiment`.
    title: ClassVar[str] = ""
    # The statistic that a CSV file holds; None: its tensors.
    main_table: ClassVar[str | None] = None
    # The maps that a view that draws asks for, where it is a setting which are kept.
    drawn_maps: ClassVar[str | None] = None
    # Settings of base classes that are not in everyday help.
    rare_keys: ClassVar[frozenset[str]] = frozenset()

    seed: Annotated[Seed, Everyday()] = Field(0, description="the generator's seed")
    device: Annotated[Literal["auto", "cpu", "cuda"], BeforeValidator(_device)] = Field(
        "auto", description="where it is computed"
    )

    @field_validator("*", mode="before")
    @classmethod
    def _plain_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Where a number is meant, numpy's as Python's, and no truth value, which Python counts as 0 or 1."""
        annotation: Any = cls.model_fields[str(info.field_name)].annotation
        if not takes_numbers(annotation):
            return value
        is_list = isinstance(value, list | tuple)
        return [plain_number(item) for item in value] if is_list else plain_number(value)

    @classmethod
    def group_of(cls, key: str) -> str:
        """The heading of help for a setting: that of the setting, else that of the class that declares it."""
        titles = (data.title for data in cls.model_fields[key].metadata if isinstance(data, Heading))
        bases = (base for base in reversed(cls.__mro__) if issubclass(base, Spec))
        return next(titles, next(base.group for base in bases if key in base.model_fields))

    @classmethod
    def title_of(cls, settings: Mapping[str, Any]) -> str:
        """The heading of a page or picture of a report with these settings."""
        return cls.title

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """What to type next, below a report of these settings."""
        return cls.next_steps

    @classmethod
    def reads_key(cls, key: str) -> bool:
        """True for the name of a setting, or another name of one."""
        return key in cls.model_fields or key in cls.other_names()

    @classmethod
    def other_names(cls) -> dict[str, str]:
        """What its settings may be called, too, by that name."""
        return other_names(cls.model_fields)

    @classmethod
    def parts_of(cls, key: str, value: Any) -> dict[str, Any]:
        """The settings that a value stands for, where one is written in short for several."""
        return {key: value}

    @classmethod
    def setting_of_argument(cls, value: str) -> str | None:
        """The setting that a value without a flag gives: `argument`, or the file of a text for `-`."""
        is_stdin = value == "-" and cls.argument == "sentence" and "file" in cls.model_fields
        return "file" if is_stdin else cls.argument

    def chosen(self) -> Self:
        """The class of the given settings, where one command has several kinds."""
        return self

    def contradictions(self) -> Contradictions:
        """Every impossible combination of settings that are each valid: here `needs` and `excludes`."""
        excluded = [*self._excluded()]
        excluded_keys = {each.key for each in excluded}
        for base in type(self).__mro__:
            for settings, needed in vars(base).get("needs", {}).items():
                if not self.has(needed):
                    ways = alternatives(needed)
                    words = " or ".join(map(str, ways)) or "a feature that is off"
                    unmet = self._contradictions_of(settings, f"needs {words}", [way.key for way in ways])
                    yield from (each for each in unmet if each.key not in excluded_keys)
        yield from excluded

    def _excluded(self) -> Contradictions:
        for base in type(self).__mro__:
            for cause, settings in vars(base).get("excludes", {}).items():
                if (exclusion := self.exclusion(cause)) is not None:
                    yield from self._contradictions_of(settings, *exclusion)

    def has(self, needed: str) -> bool:
        """True if one of the settings of `a|b` has a value."""
        return any(way.is_met(self) for way in alternatives(needed))

    def exclusion(self, cause: str) -> tuple[str, Sequence[str]] | None:
        """The error of settings that `cause` excludes, and the settings behind it; None without that."""
        condition = SettingCondition.of(cause)
        is_given = self.given(condition.key) and condition.is_met(self)
        return (f"cannot be combined with {condition}", [condition.key]) if is_given else None

    def _contradictions_of(self, settings: str, message: str, others: Sequence[str]) -> Contradictions:
        """The message at each of the settings that is given."""
        for key, value in map(SettingCondition.of, settings.split(", ")):
            if self.given(key) and value in ("", str(getattr(self, key))):
                yield contradiction(key, f"{value} {message}".lstrip(), *others)

    def unused_keys(self) -> frozenset[str]:
        """The settings that the others leave without effect: neither shown nor to be given."""
        return frozenset()

    def unreported_keys(self) -> frozenset[str]:
        """The settings that a report leaves out: the unused ones, and those of off_keys that are off."""
        return self.unused_keys() | {key for key in self.all_off_keys() if not self.changed(key)}

    @classmethod
    def all_off_keys(cls) -> frozenset[str]:
        """The `off_keys` of the class and of those that it extends."""
        return frozenset(key for base in cls.__mro__ for key in vars(base).get("off_keys", ()))

    def text_sources(self) -> tuple[TextSource, ...]:
        """The text that the experiment reads, and maybe a context."""
        return ()

    def other_files(self) -> Iterator[tuple[str, str]]:
        """The text files that are read beside those of `text_sources`, each behind its setting."""
        return iter(())

    def word_tokenizer(self) -> str | None:
        """How a text becomes tokens; None where the model's tokenizer does it, or without a text."""
        return None

    def sampled_counts(self) -> tuple[int, int]:
        """The numbers of random queries and keys; zeros where there are texts instead."""
        counts = [source.num_tokens or 0 for source in self.text_sources()] or [0]
        return counts[0], counts[-1]

    def table_dim(self) -> int | None:
        """The size of the vectors of its words, which the next experiment may keep; None without any."""
        return None

    def model_source(self) -> str | None:
        """The folder or hub id of the pretrained model that takes part, or None."""
        return None

    def check_texts(self, texts: "Texts") -> None:
        """Raise UserError for wrong texts and files of texts: called before torch is imported."""

    def extras(self) -> Iterator[Extra]:
        """The extras that the settings need, whose packages are checked before anything is read."""
        return iter(())

    def needed_bytes(self, num_queries: int, num_keys: int) -> int:
        """About how much memory the experiment takes at its peak; 0 where it is checked later or small."""
        return 0

    def memory_advice(self, num_queries: int, num_keys: int) -> str:
        """The setting to use with less memory than that."""
        return "smaller sizes"

    def num_weights(self, num_queries: int, num_keys: int) -> int:
        """How many weights all heads have on all sequences."""
        return 0

    def chosen_engine(self, num_queries: int, num_keys: int) -> str:
        """dense or streaming."""
        return "dense"

    def can_run_together(self) -> bool:
        """Whether several texts gain by running together, and their report can be taken apart."""
        return False

    def setting_of_file(self) -> str:
        """The setting that names a file to read in place of text; empty without one."""
        return ""

    def reads_many_texts(self) -> bool:
        """Whether it reads many texts, which run together; its report is about all of them."""
        return False

    def is_explained(self) -> bool:
        """Whether its report has the steps of the computation."""
        return False

    def page(self) -> "Page":
        """What runs it, imported now."""
        from attncli.settings import page_of

        return page_of(type(self), is_of_model=self.model_source() is not None)

    def result_kind(self) -> str:
        """The kind of its result, by the name in records/kinds.py, whose columns say which numbers it has."""
        return ""

    def unmeasured(self) -> set[str]:
        """The columns, and the groups of numbers, that its result lacks with these settings."""
        return set()

    def row_statistics(self) -> tuple[str, ...]:
        """The statistics of rows, and of keys, that its report will have: a run keeps SUMMARIES of each."""
        return ()

    def single_statistics(self) -> tuple[str, ...]:
        """The names of all other numbers of its report."""
        return ()

    def conflicts(self, *keys: str) -> Contradictions:
        """Each two of the keys that are both given."""
        for first, second in combinations(self.given(*keys), 2):
            yield contradiction(first, f"cannot be combined with `{second}`: give one of them", second)

    def given(self, *keys: str) -> list[str]:
        """Those of the keys that the user gave, in this order, even if with their defaults.

        Neither a switch that was turned off and is off by default nor an empty list: they ask for nothing.
        """
        return [key for key in keys if key in self.model_fields_set and not self._is_left_off(key)]

    def _is_left_off(self, key: str) -> bool:
        value = getattr(self, key)
        return value == [] or (value is False and type(self).model_fields[key].default is not True)

    def changed(self, *keys: str) -> list[str]:
        """Those of the keys that the user set to something else than their defaults, in this order."""
        return [
            key for key in keys if key in self.model_fields_set and getattr(self, key) != self._default(key)
        ]

    def _default(self, key: str) -> Any:
        field = type(self).model_fields[key]
        return field.get_default(call_default_factory=True, validated_data=self.__dict__)


class ExplainSpec(Spec):
    """Whether the computation is explained."""

    group = "Output"

    explain: Annotated[bool, Everyday("explain the computation step by step")] = Field(
        False,
        description="explain the computation in steps, each with its why, its formula, shapes and numbers",
    )

    def is_explained(self) -> bool:
        return self.explain


class ExplainRowSpec(ExplainSpec):
    """Which row of the weights is explained, too."""

    explained_keys: ClassVar[frozenset[str]] = frozenset({"token"})

    token: Annotated[PositionOrName | None, Everyday("with --explain: the query, as 5 or to#2")] = Field(
        None,
        description="the query whose row is explained: a position as 5 or -1, last, a text as to, or to#2 "
        "for the second of them (default: last)",
    )

    def unused_keys(self) -> frozenset[str]:
        return super().unused_keys() | (frozenset() if self.explain else self.explained_keys)

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if not self.explain:
            for key in self.given(*sorted(self.explained_keys)):
                counts = "; `num_heads` is how many there are" if key == "head" else ""
                yield contradiction(key, f"needs `explain`: it chooses what is explained{counts}", "explain")


ALTERNATIVES = (
    ("sentence", "file", "texts", "relations", "pairs", "num_tokens"),
    ("context", "context_file", "num_context_tokens"),
)
"""The settings that give one text, or another one: a flag of a group replaces what a file gives of it."""

AnySpec = TypeVar("AnySpec", bound=Spec)


class Given(NamedTuple):
    """A value that somebody gave, and where: `configs/x.yaml:7:3` or `--head-dim`."""

    value: Any
    where: str
    is_flag: bool = False
    written: str = ""
    """The key that was written, if it is another name of the setting."""

    def line(self, key: str, message: str) -> str:
        """The error line for this value: `where: key: message`, or `where: key (10) must be ...`.

        A flag's name says its key already. Keys are flags for who typed this one.
        """
        flags = self.where.startswith("--") and not self.where.startswith("--set")
        key = self.written or key
        joint = " " if message.startswith("(") else ": "
        named = self.where if self.is_flag else f"{self.where}: {flag_name(key) if flags else key}"
        return f"{named}{joint}{in_words_of(message, flags=flags)}"


def values_of(given: Mapping[str, Given]) -> dict[str, Any]:
    """The values without their places."""
    return {key: each.value for key, each in given.items()}


# fmt: off
OTHER_FLAGS = {
    "format", "output", "open", "title", "show", "step", "precision", "color", "scale_colors",
    "skip_first_keys", "config", "show_config", "set", "dry_run", "fresh", "rows", "weights",
    "workers", "scheduler", "fail_fast", "expect", "debug",
}
# fmt: on
"""The flags of commands that are no settings: no config file may set them."""

NO_PREVIOUS = "previous needs a step before it that has a table of words: it keeps that step's vectors"


def unknown_key(key: str, value: Any, known: Iterable[str]) -> str:
    """What is wrong with a key that is no setting: a flag says so, else the nearest setting is named."""
    name = key.replace("-", "_")
    if name not in OTHER_FLAGS:
        return f"unknown key{nearest(key, known)}"
    argument = "" if str(value) in ("true", "false") else f" {shown(value)}"
    return f"is a flag of the command, not a setting: give it as --{name.replace('_', '-')}{argument}"


def _field_errors(
    spec_class: type[AnySpec], values: Mapping[str, Any]
) -> tuple[AnySpec | None, dict[str, str]]:
    try:
        return spec_class.model_validate(values), {}
    except ValidationError as failure:
        # A default that depends on a bad value is not another error.
        errors = [e for e in failure.errors() if e["type"] != "default_factory_not_called"]
        messages = {str(error["loc"][0]): error_message(error) for error in reversed(errors)}
    except UnicodeEncodeError:  # pydantic writes no message with half a surrogate pair
        messages = {key: "must be valid UTF-8 text" for key, value in values.items() if not is_unicode(value)}
    fields = spec_class.model_fields
    for key, value in values.items():
        if isinstance(value, list) and value and get_origin(fields[key].annotation) is not list:
            items = shown(value)
            messages[key] = f"takes one value (got {items}): to run each, write {key}: {items} below sweep:"
    return None, messages


OTHER_NAMES = {"head": "heads", "heads": "head", "text": "sentence"}
"""Names that are read as another one where they are no names themselves: nobody need know which it is."""


def other_names(names: Collection[str]) -> dict[str, str]:
    """Which of these names are also called how."""
    return {other: name for other, name in OTHER_NAMES.items() if name in names and other not in names}


def current(spec_class: type[Spec], given: Mapping[str, Given]) -> dict[str, Given]:
    """The settings under their present names, split where one value means several: `head: 24:4`.

    Raises UserError if a setting is given by both its names. A head whose layer is also given differently
    stays whole, which is reported later.
    """
    renamed: dict[str, Given] = {}
    for key, value in given.items():
        name = key
        if key in (others := spec_class.other_names()):
            name = others[key]
            if name in given:
                raise UserError(value.line(key, f"is the same as {name}: give one of them"))
            value = value._replace(written=key)
            is_single = isinstance(value.value, list) and len(value.value) == 1
            if is_single and get_origin(spec_class.model_fields[name].annotation) is not list:
                value = value._replace(value=value.value[0])
        parts = spec_class.parts_of(name, value.value)
        differ = [
            part for part in parts if part != key and part in given and str(given[part].value) != parts[part]
        ]
        parts = {name: value.value} if differ else parts
        renamed |= {part: value._replace(value=of_part) for part, of_part in parts.items()}
    return renamed


def setting_errors(key: str, value: Given, specs: Iterable[type[Spec]]) -> list[str]:
    """The error of a setting by itself, for the first experiment that has it: one line, or an empty list."""
    specs = list(specs)
    spec_class = next((spec for spec in specs if spec.reads_key(key)), None)
    if spec_class is None:
        known = {name for spec in specs for name in spec.model_fields}
        return [value.line(key, unknown_key(key, value.value, known))]
    parts = current(spec_class, {key: value})
    _, errors = _field_errors(spec_class, {name: part.value for name, part in parts.items()})
    return [value.line(name, message) for name, message in errors.items() if name in parts]


@hints_for_first_lines()
def build_spec(spec_class: type[AnySpec], given: Mapping[str, Given]) -> AnySpec:
    """The validated settings of an experiment. Raises UserError with one line for each thing that is wrong.

    A value of None counts as not given. Contradictions among the settings that are valid are reported
    together with those that are not.
    """
    from attncli.settings import asked_by, refusal

    known = spec_class.model_fields
    given = current(spec_class, given)
    lines: list[str] = []
    refused: set[str] = set()
    for key, value in given.items():
        if key not in known:
            if (reason := refusal(spec_class, key, value.value)) is not None:
                if reason:
                    refused.add(key)
                    lines.append(value.line(key, reason))
                continue
            message = unknown_key(key, value.value, known)
            more = f" for {spec_class.experiment}; known: {', '.join(known)}"
            if (elsewhere := spec_class.settings_elsewhere.get(key)) is not None:
                name, instead = spec_class.experiment, elsewhere.format(value=shown(value.value))
                message, more = f"is not a setting of attn {name}, which {instead}", ""
            lines.append(value.line(key, message + (more if message == "unknown key" else "")))
    values = {k: _of_list(known[k], v.value) for k, v in given.items() if k in known and v.value is not None}

    spec, errors = _field_errors(spec_class, values)
    if spec is None:
        lines += [given[key].line(key, message) for key, message in errors.items() if key in given]
        asking = asked_by(spec_class)
        lines += [
            given[asking].line(asking, f"needs `{key}`")
            for key in errors
            if key not in given and asking in given
        ]
        spec, _ = _field_errors(spec_class, {k: v for k, v in values.items() if k not in errors})
    if spec is not None:
        # In the order of the settings, whichever class or setting says so.
        places = {key: place for place, key in enumerate(known)}
        for key, message, keys in sorted(spec.contradictions(), key=lambda broken: places[broken.key]):
            if not keys & (errors.keys() | refused):
                source = next(given[k] for k in (key, *sorted(keys), *given) if k in given)
                lines.append(source._replace(is_flag=source.is_flag and key in given).line(key, message))
    if lines:
        raise UserError(*dict.fromkeys(lines))
    assert spec is not None
    return spec.chosen()


def checked_spec(spec_class: type[AnySpec], given: Mapping[str, Given]) -> AnySpec:
    """The settings of a single experiment. Raises UserError with every mistake."""
    spec = build_spec(spec_class, given)
    if "embedding" in given and given["embedding"].value == "previous":
        raise UserError(given["embedding"].line("embedding", NO_PREVIOUS))
    return spec


def with_maps(spec_class: type[Spec], given: Mapping[str, Given], reason: str) -> dict[str, Given]:
    """The settings with which a survey keeps what each head looks at, because it is drawn."""
    if spec_class.drawn_maps is not None and not {"statistic", "texts"} & given.keys():
        return {"maps": Given(spec_class.drawn_maps, reason), **given}
    return dict(given)
