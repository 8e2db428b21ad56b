"""The base class of all Specs, the fields that several Specs share, and their validation.

All errors are reported together, each with the place of the value.
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
"""Peak memory in bytes per number, from scores to a printed report, measured and rounded up."""

SUMMARIES = ("mean", "min", "max")
"""The summaries that a run stores of each row statistic, per head."""

SCALES = ("sqrt", "fourth-root", "none")
MAX_SCALE = 1e38
"""Below the float32 maximum of 3.4e38."""


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
"""Flags that differ from their keys: `examples` is already a Spec's examples for help."""
KEY = re.compile(r"`([a-z_]+)`")


def flag_name(key: str) -> str:
    """Return the flag of a setting, such as `--head-dim` for `head_dim`."""
    return FLAGS.get(key, f"--{key.replace('_', '-')}")


def with_key_names(text: str, *, flags: bool) -> str:
    """Replace the keys in backticks by their flags or, with flags=False, by the plain keys."""
    return KEY.sub(lambda key: flag_name(key[1]) if flags else key[1], text)


def _token_name(value: Any) -> str:
    (name,) = token_names([value])
    return name


TokenName = Annotated[str, BeforeValidator(_token_name), WithJsonSchema({"type": ["string", "integer"]})]
"""A token's name; see `attncli.core.names`."""


def _position_or_name(value: Any) -> Any:
    return int(value) if isinstance(value, str) and POSITION.fullmatch(value) else value


PositionOrName = Annotated[
    int | str, BeforeValidator(_position_or_name), WithJsonSchema({"type": ["string", "integer"]})
]


class Heading(NamedTuple):
    """The heading of a field in help, if it differs from its class's heading."""

    title: str


class Everyday(NamedTuple):
    """Marks a setting whose flag is in everyday help, with its text there (default: its description)."""

    text: str = ""


class NoFlag(NamedTuple):
    """Marks a setting that has no flag, with the error for using the flag."""

    reason: str


CONFIG_ONLY = NoFlag("is only for config files: use --config FILE with {key}: VALUE")


class Contradiction(NamedTuple):
    """Settings that are each valid but cannot be combined."""

    key: str
    message: str
    keys: frozenset[str]


def contradiction(key: str, message: str, *others: str) -> Contradiction:
    """Return a contradiction that is reported at `key` and also involves the other keys.

    Keys in the message are in backticks, so that they can be shown as flags.
    """
    return Contradiction(key, message, frozenset((key, *others)))


Contradictions = Iterator[Contradiction]


class SettingCondition(NamedTuple):
    """A condition on a setting: any value, written as `head`, or a specific one, written as `method=swap`."""

    key: str
    value: str = ""

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse a condition."""
        return cls(*text.partition("=")[::2])

    def is_met(self, spec: "Spec") -> bool:
        """Return True if the setting has such a value. A switch that is off has no value."""
        value = getattr(spec, self.key, None)
        if self.value:
            return str(value) == self.value
        return value is not None and value is not False and value != [] and value != ""

    def __str__(self) -> str:
        """Return the condition in the form shown in messages."""
        return f"`{self.key}` {self.value}".rstrip()


def alternatives(text: str) -> list[SettingCondition]:
    """Parse alternative conditions, written as `a|b=c`, of which one suffices."""
    return [SettingCondition.of(each) for each in text.split("|") if each]


ONE_HEAD = "--head LAYER:HEAD"
"""A next step, whose LAYER:HEAD is replaced by the first head in the report."""


def in_group(group: str, *names: str) -> tuple[str, ...]:
    """Return `group.name` for each name; an N in the group is a list index, as in `sharpness.N.entropy`."""
    return tuple(f"{group}.{name}" for name in names)


def annotation_leaves(annotation: Any) -> Iterator[Any]:
    """Yield the types and literals that an annotation contains."""
    parts = get_args(annotation)
    if not parts:
        yield annotation
    for part in parts:
        yield from annotation_leaves(part)


@cache
def takes_numbers(annotation: Any) -> bool:
    """Return True if a setting accepts numbers but never a Boolean."""
    leaves = [*annotation_leaves(annotation)]
    return (int in leaves or float in leaves) and bool not in leaves


class Extra(NamedTuple):
    """An extra of attncli that a setting needs, and the packages that the extra installs."""

    key: str
    name: str
    packages: tuple[str, ...]


class TextSource(NamedTuple):
    """The source of a text: the setting `key` itself, a file, or a number of random vectors."""

    key: str
    text: str | None
    file: str | None = None
    num_tokens: int | None = None


def _list_value(field: "FieldInfo", value: Any) -> Any:
    """Split a comma-separated string, such as a flag's value, if the setting is a list."""
    is_text = isinstance(value, str) and get_origin(field.annotation) is list
    return [part.strip() for part in value.split(",")] if is_text else value


def _device(value: Any) -> Any:
    """Return the device. Raises ValueError for a device that attn does not use, with an alternative."""
    if not isinstance(value, str) or value in ("auto", "cpu", "cuda"):
        return value
    if value.startswith("cuda:") and value[5:].isdecimal():
        raise ValueError(
            f"must be cuda, the first card (got {value}): set CUDA_VISIBLE_DEVICES={value[5:]} for that card"
        )
    if value in ("gpu", "nvidia"):
        raise ValueError(f"must be auto, cpu or cuda: cuda is an NVIDIA GPU (got {value})")
    raise ValueError(f"must be auto, cpu or cuda (got {value:.60}); without CUDA, use cpu")


class Spec(BaseModel):
    """The validated settings of one experiment, frozen and with every default filled in. Imports no torch."""

    # Many classes serve only as bases, so validators are built when a class is first used.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    experiment: ClassVar[str]
    # Command lines shown in help.
    examples: ClassVar[tuple[str, ...]]
    # Settings that a report leaves out if they have their defaults, in addition to those of base classes.
    off_keys: ClassVar[frozenset[str]] = frozenset()
    # Requirements and exclusions, in addition to those of base classes; `a=b` is the setting a with value b.
    # Comma-separated settings, by the setting that they need: `a|b` means either of the two.
    needs: ClassVar[Mapping[str, str]] = {}
    # Comma-separated settings that a setting (or another cause known to `exclusion`) rules out.
    excludes: ClassVar[Mapping[str, str]] = {}
    # Suggested next steps below a report: flags of the command, or values of its argument.
    next_steps: ClassVar[tuple[str, ...]] = ()
    # For parts that the experiment's reports may lack, the command or flag that shows them.
    parts_elsewhere: ClassVar[Mapping[str, str]] = {}
    # For settings that the experiment lacks, what it does instead and what to use; {value} is the value.
    settings_elsewhere: ClassVar[Mapping[str, str]] = {}
    # The parts that `--show` accepts for its reports, as listed in help.
    parts: ClassVar[tuple[str, ...]] = ()
    # The setting that the command-line argument sets.
    argument: ClassVar[str | None] = None
    # The heading of this class's fields in help.
    group: ClassVar[str] = "Options"
    # The settings on the first line of a report, in the same order.
    heading_keys: ClassVar[tuple[str, ...]] = ("seed",)
    # The title of pictures (default: `experiment`).
    title: ClassVar[str] = ""
    # The statistic that a CSV file holds, or None for the report's tensors.
    main_table: ClassVar[str | None] = None
    # The value of `maps` in views that draw, if that setting exists.
    drawn_maps: ClassVar[str | None] = None
    # Settings of base classes that everyday help leaves out.
    rare_keys: ClassVar[frozenset[str]] = frozenset()

    seed: Annotated[Seed, Everyday()] = Field(0, description="the random seed")
    device: Annotated[Literal["auto", "cpu", "cuda"], BeforeValidator(_device)] = Field(
        "auto", description="device to compute on"
    )

    @field_validator("*", mode="before")
    @classmethod
    def _plain_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Convert NumPy numbers to Python's, and refuse Booleans, which Python counts as 0 and 1."""
        annotation: Any = cls.model_fields[str(info.field_name)].annotation
        if not takes_numbers(annotation):
            return value
        is_list = isinstance(value, list | tuple)
        return [plain_number(item) for item in value] if is_list else plain_number(value)

    @classmethod
    def group_of(cls, key: str) -> str:
        """Return the setting's heading in help: its own, or else that of its declaring class."""
        titles = (data.title for data in cls.model_fields[key].metadata if isinstance(data, Heading))
        bases = (base for base in reversed(cls.__mro__) if issubclass(base, Spec))
        return next(titles, next(base.group for base in bases if key in base.model_fields))

    @classmethod
    def title_of(cls, settings: Mapping[str, Any]) -> str:
        """Return the title of the page or picture of a report with these settings."""
        return cls.title

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the suggested next steps for a report with these settings."""
        return cls.next_steps

    @classmethod
    def reads_key(cls, key: str) -> bool:
        """Return True for the name of a setting, including alternative names."""
        return key in cls.model_fields or key in cls.alternative_names()

    @classmethod
    def alternative_names(cls) -> dict[str, str]:
        """Return the names of settings by their alternative names."""
        return alternative_names(cls.model_fields)

    @classmethod
    def parts_of(cls, key: str, value: Any) -> dict[str, Any]:
        """Return the settings that a value stands for if it is shorthand for several settings."""
        return {key: value}

    @classmethod
    def setting_of_argument(cls, value: str) -> str | None:
        """Return the setting that an argument sets: `argument`, or `file` for `-` in place of a sentence."""
        is_stdin = value == "-" and cls.argument == "sentence" and "file" in cls.model_fields
        return "file" if is_stdin else cls.argument

    def chosen(self) -> Self:
        """Return these settings as an instance of the subclass for their kind, if there are several kinds."""
        return self

    def contradictions(self) -> Contradictions:
        """Yield impossible combinations of valid settings; here, what `needs` and `excludes` forbid."""
        excluded = [*self._excluded()]
        excluded_keys = {each.key for each in excluded}
        for base in type(self).__mro__:
            for settings, needed in vars(base).get("needs", {}).items():
                if not self.has(needed):
                    ways = alternatives(needed)
                    words = " or ".join(map(str, ways)) or "a feature that is switched off"
                    unmet = self._contradictions_of(settings, f"needs {words}", [way.key for way in ways])
                    yield from (each for each in unmet if each.key not in excluded_keys)
        yield from excluded

    def _excluded(self) -> Contradictions:
        for base in type(self).__mro__:
            for cause, settings in vars(base).get("excludes", {}).items():
                if (exclusion := self.exclusion(cause)) is not None:
                    yield from self._contradictions_of(settings, *exclusion)

    def has(self, needed: str) -> bool:
        """Return True if any of the settings of `a|b` has a value."""
        return any(way.is_met(self) for way in alternatives(needed))

    def exclusion(self, cause: str) -> tuple[str, Sequence[str]] | None:
        """Return the error about settings that `cause` rules out, and the keys behind the cause, or None."""
        condition = SettingCondition.of(cause)
        is_given = self.given(condition.key) and condition.is_met(self)
        return (f"cannot be combined with {condition}", [condition.key]) if is_given else None

    def _contradictions_of(self, settings: str, message: str, others: Sequence[str]) -> Contradictions:
        """Yield the message for each of the settings that was given."""
        for key, value in map(SettingCondition.of, settings.split(", ")):
            if self.given(key) and value in ("", str(getattr(self, key))):
                yield contradiction(key, f"{value} {message}".lstrip(), *others)

    def unused_keys(self) -> frozenset[str]:
        """Return settings that have no effect given the other settings: not shown, and refused if given."""
        return frozenset()

    def unreported_keys(self) -> frozenset[str]:
        """Return the settings that a report leaves out: unused ones, and `off_keys` with default values."""
        return self.unused_keys() | {key for key in self.all_off_keys() if not self.changed(key)}

    @classmethod
    def all_off_keys(cls) -> frozenset[str]:
        """Return the `off_keys` of the class and its base classes."""
        return frozenset(key for base in cls.__mro__ for key in vars(base).get("off_keys", ()))

    def text_sources(self) -> tuple[TextSource, ...]:
        """Return the source of the text and, in cross-attention, the source of the context."""
        return ()

    def other_files(self) -> Iterator[tuple[str, str]]:
        """Yield further text files to read, as (setting, file)."""
        return iter(())

    def word_tokenizer(self) -> str | None:
        """Return the tokenizer for words, or None if the model has its own tokenizer or there is no text."""
        return None

    def sampled_counts(self) -> tuple[int, int]:
        """Return the numbers of random queries and keys, which are zero for texts."""
        counts = [source.num_tokens or 0 for source in self.text_sources()] or [0]
        return counts[0], counts[-1]

    def table_dim(self) -> int | None:
        """Return the size of word vectors for the next experiment to reuse, or None without word vectors."""
        return None

    def model_source(self) -> str | None:
        """Return the folder or hub id of the pretrained model, or None."""
        return None

    def check_texts(self, texts: "Texts") -> None:
        """Raise UserError for invalid texts or text files, before torch is imported."""

    def extras(self) -> Iterator[Extra]:
        """Yield the extras that the settings need; their packages are checked before anything is read."""
        return iter(())

    def needed_bytes(self, num_queries: int, num_keys: int) -> int:
        """Return the approximate peak memory in bytes, or 0 if it is small or is checked later."""
        return 0

    def memory_advice(self, num_queries: int, num_keys: int) -> str:
        """Return the setting that reduces memory use."""
        return "smaller sizes"

    def num_weights(self, num_queries: int, num_keys: int) -> int:
        """Return the number of attention weights in all heads and all sequences."""
        return 0

    def chosen_engine(self, num_queries: int, num_keys: int) -> str:
        """Return `dense` or `streaming`."""
        return "dense"

    def can_run_together(self) -> bool:
        """Return True if several texts run faster together and their reports can be separated."""
        return False

    def setting_of_file(self) -> str:
        """Return the setting that names a file read in place of a text, or an empty string."""
        return ""

    def reads_many_texts(self) -> bool:
        """Return True if a single report covers many texts, which run together."""
        return False

    def is_explained(self) -> bool:
        """Return True if the report contains the steps of the computation."""
        return False

    def page(self) -> "Page":
        """Import and return the page that runs the experiment."""
        from attncli.settings import page_of

        return page_of(type(self), uses_model=self.model_source() is not None)

    def result_kind(self) -> str:
        """Return the kind of the result, a name in records/kinds.py; that kind's columns name the numbers."""
        return ""

    def unmeasured(self) -> set[str]:
        """Return the columns and groups of numbers that the result lacks with these settings."""
        return set()

    def row_statistics(self) -> tuple[str, ...]:
        """Return the row and key statistics in the report; for each of them, a run stores SUMMARIES."""
        return ()

    def single_statistics(self) -> tuple[str, ...]:
        """Return the names of all other numbers in the report."""
        return ()

    def conflicts(self, *keys: str) -> Contradictions:
        """Yield a contradiction for any two of the keys if both are given."""
        for first, second in combinations(self.given(*keys), 2):
            yield contradiction(first, f"cannot be combined with `{second}`: give one of them", second)

    def given(self, *keys: str) -> list[str]:
        """Return those of the keys that the user set, in the same order, including keys set to a default."""
        return [key for key in keys if key in self.model_fields_set and not self._is_left_off(key)]

    def _is_left_off(self, key: str) -> bool:
        value = getattr(self, key)
        return value == [] or (value is False and type(self).model_fields[key].default is not True)

    def changed(self, *keys: str) -> list[str]:
        """Return the keys that the user set to non-default values, in the same order."""
        return [
            key for key in keys if key in self.model_fields_set and getattr(self, key) != self._default(key)
        ]

    def _default(self, key: str) -> Any:
        field = type(self).model_fields[key]
        return field.get_default(call_default_factory=True, validated_data=self.__dict__)


class ExplainSpec(Spec):
    """Adds the setting `explain`, which shows the computation step by step."""

    group = "Output"

    explain: Annotated[bool, Everyday("explain the computation step by step")] = Field(
        False,
        description="explain the computation step by step, with reasons, formulas, shapes and numbers",
    )

    def is_explained(self) -> bool:
        return self.explain


class ExplainRowSpec(ExplainSpec):
    """Adds the setting for the row of weights that is explained."""

    explained_keys: ClassVar[frozenset[str]] = frozenset({"token"})

    token: Annotated[PositionOrName | None, Everyday("with --explain: the query, such as 5 or to#2")] = Field(
        None,
        description="the query whose row is explained: a position such as 5 or -1, last, a word such as to, "
        "or to#2 for its second occurrence (default: last)",
    )

    def unused_keys(self) -> frozenset[str]:
        return super().unused_keys() | (frozenset() if self.explain else self.explained_keys)

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if not self.explain:
            for key in self.given(*sorted(self.explained_keys)):
                hint = "; `num_heads` sets their number" if key == "head" else ""
                yield contradiction(
                    key, f"needs `explain`: this setting selects what to explain{hint}", "explain"
                )


ALTERNATIVES = (
    ("sentence", "file", "texts", "relations", "pairs", "num_tokens"),
    ("context", "context_file", "num_context_tokens"),
)
"""Groups of settings that choose the same text: a flag replaces any setting of its group in a file."""

AnySpec = TypeVar("AnySpec", bound=Spec)


class Given(NamedTuple):
    """A value that the user gave and its place, such as `configs/x.yaml:7:3` or `--head-dim`."""

    value: Any
    where: str
    is_flag: bool = False
    written: str = ""
    """The alternative name under which the key was written, if any."""

    def line(self, key: str, message: str) -> str:
        """Return the error line for this value, like `where: key: message` or `where: key (10) must be ...`.

        A flag already names its key. If the value came from a flag, keys in the message become flags.
        """
        flags = self.where.startswith("--") and not self.where.startswith("--set")
        key = self.written or key
        separator = " " if message.startswith("(") else ": "
        subject = self.where if self.is_flag else f"{self.where}: {flag_name(key) if flags else key}"
        return f"{subject}{separator}{with_key_names(message, flags=flags)}"


def values_of(given: Mapping[str, Given]) -> dict[str, Any]:
    """Return the values without their places."""
    return {key: each.value for key, each in given.items()}


# fmt: off
COMMAND_FLAGS = {
    "format", "output", "open", "title", "figure_width", "show", "step", "precision", "color", "scale_colors",
    "skip_first_keys", "config", "show_config", "set", "dry_run", "fresh", "rows", "weights",
    "workers", "scheduler", "fail_fast", "expect", "debug",
}
# fmt: on
"""Flags of commands that are not settings: a config file cannot set them."""

NO_PREVIOUS = "previous needs an earlier step with a table of word vectors to reuse"


def unknown_key(key: str, value: Any, settings: Iterable[str]) -> str:
    """Return the error for a key that is not a setting; it names a command's flag or the nearest setting."""
    name = key.replace("-", "_")
    if name not in COMMAND_FLAGS:
        return f"unknown key{nearest(key, settings)}"
    argument = "" if str(value) in ("true", "false") else f" {shown(value)}"
    return f"is a flag of the command, not a setting: use --{name.replace('_', '-')}{argument}"


def _field_errors(
    spec_class: type[AnySpec], values: Mapping[str, Any]
) -> tuple[AnySpec | None, dict[str, str]]:
    try:
        return spec_class.model_validate(values), {}
    except ValidationError as failure:
        # A default that depends on an invalid value is not another error.
        errors = [e for e in failure.errors() if e["type"] != "default_factory_not_called"]
        messages = {str(error["loc"][0]): error_message(error) for error in reversed(errors)}
    except UnicodeEncodeError:  # pydantic cannot put half a surrogate pair into its message
        messages = {key: "must be valid UTF-8 text" for key, value in values.items() if not is_unicode(value)}
    fields = spec_class.model_fields
    for key, value in values.items():
        if isinstance(value, list) and value and get_origin(fields[key].annotation) is not list:
            items = shown(value)
            messages[key] = f"takes one value (got {items}): to run each, put {key}: {items} under sweep:"
    return None, messages


ALTERNATIVE_NAMES = {"head": "heads", "heads": "head", "text": "sentence"}
"""Alternative names of settings, read only if they are not themselves settings."""


def alternative_names(names: Collection[str]) -> dict[str, str]:
    """Return the main names of settings by their alternative names."""
    return {
        alternative: name
        for alternative, name in ALTERNATIVE_NAMES.items()
        if name in names and alternative not in names
    }


def current(spec_class: type[Spec], given: Mapping[str, Given]) -> dict[str, Given]:
    """Return the settings under their main names, split if a value stands for several, like `head: 24:4`.

    Raises UserError if a setting is given under both names. A head stays whole if its layer is also given
    with a different value, an error that is reported later.
    """
    renamed: dict[str, Given] = {}
    for key, value in given.items():
        name = key
        if key in (main_names := spec_class.alternative_names()):
            name = main_names[key]
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
        renamed |= {part: value._replace(value=part_value) for part, part_value in parts.items()}
    return renamed


def setting_errors(key: str, value: Given, specs: Iterable[type[Spec]]) -> list[str]:
    """Return a list with the error in a setting for the first experiment that has it, or an empty list."""
    specs = list(specs)
    spec_class = next((spec for spec in specs if spec.reads_key(key)), None)
    if spec_class is None:
        names = {name for spec in specs for name in spec.model_fields}
        return [value.line(key, unknown_key(key, value.value, names))]
    parts = current(spec_class, {key: value})
    _, errors = _field_errors(spec_class, {name: part.value for name, part in parts.items()})
    return [value.line(name, message) for name, message in errors.items() if name in parts]


@hints_for_first_lines()
def build_spec(spec_class: type[AnySpec], given: Mapping[str, Given]) -> AnySpec:
    """Validate the settings of an experiment. Raises UserError with one line per problem.

    None counts as not given. Contradictions among valid settings are reported together with invalid ones.
    """
    from attncli.settings import SPECS, asked_by, every_setting_of, refusal

    fields = spec_class.model_fields
    given = current(spec_class, given)
    lines: list[str] = []
    refused: set[str] = set()
    for key, value in given.items():
        if key not in fields:
            if (reason := refusal(spec_class, key, value.value)) is not None:
                if reason:
                    refused.add(key)
                    lines.append(value.line(key, reason))
                continue
            name = spec_class.experiment
            known = every_setting_of(name).model_fields if name in SPECS else fields
            message = unknown_key(key, value.value, known)
            more = f" for {name}; known: {', '.join(known)}"
            if (elsewhere := spec_class.settings_elsewhere.get(key)) is not None:
                instead = elsewhere.format(value=shown(value.value))
                message, more = f"is not a setting of attn {name}, which {instead}", ""
            lines.append(value.line(key, message + (more if message == "unknown key" else "")))
    values = {
        k: _list_value(fields[k], v.value) for k, v in given.items() if k in fields and v.value is not None
    }

    spec, errors = _field_errors(spec_class, values)
    if spec is None:
        lines += [given[key].line(key, message) for key, message in errors.items() if key in given]
        form_key = asked_by(spec_class)
        lines += [
            given[form_key].line(form_key, f"needs `{key}`")
            for key in errors
            if key not in given and form_key in given
        ]
        spec, _ = _field_errors(spec_class, {k: v for k, v in values.items() if k not in errors})
    if spec is not None:
        # Sorted by setting, whichever class reports the contradiction.
        places = {key: place for place, key in enumerate(fields)}
        for key, message, keys in sorted(spec.contradictions(), key=lambda broken: places[broken.key]):
            if not keys & (errors.keys() | refused):
                source = next(given[k] for k in (key, *sorted(keys), *given) if k in given)
                lines.append(source._replace(is_flag=source.is_flag and key in given).line(key, message))
    if lines:
        raise UserError(*dict.fromkeys(lines))
    assert spec is not None
    return spec.chosen()


def checked_spec(spec_class: type[AnySpec], given: Mapping[str, Given]) -> AnySpec:
    """Validate the settings of a single experiment. Raises UserError that lists all problems."""
    spec = build_spec(spec_class, given)
    if "embedding" in given and given["embedding"].value == "previous":
        raise UserError(given["embedding"].line("embedding", NO_PREVIOUS))
    return spec


def with_maps(spec_class: type[Spec], given: Mapping[str, Given], reason: str) -> dict[str, Given]:
    """Return the settings with maps switched on, for a view that draws what each head looks at."""
    if spec_class.drawn_maps is not None and not {"statistic", "texts"} & given.keys():
        return {"maps": Given(spec_class.drawn_maps, reason), **given}
    return dict(given)
