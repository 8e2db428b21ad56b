"""What a value may be, for settings and for calls from Python: kinds of values, and the check of a call.

A Spec's field and a function's parameter are annotated with the same kind, as `Size`; `checked` holds a call
to its annotations before anything is read or loaded.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import cache, wraps
from inspect import Parameter, signature
from operator import index
from os import PathLike, fsencode, fspath
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_type_hints

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import ErrorDetails

from attncli.core.names import named_head
from attncli.errors import NO_TEXT, UserError, must_be_one_of, nearest

MAX_SIZE = 10**9
"""What any size or count may be: sums and products of some of them still fit into 64 bits."""
MAX_SHOWN = 60
"""Characters of a wrong value that an error repeats."""


def plain_number(value: Any) -> Any:
    """A number of numpy or torch as Python's. Raises ValueError for a truth value, which counts as 0 or 1."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, bool):
        raise ValueError(f"must be a number (got {value})")
    return value


def number_as_text(value: Any) -> Any:
    """A number as it is written, for settings that are one of a few; whatever else as it is given.

    Raises ValueError for a truth value.
    """
    value = plain_number(value)
    return str(value) if isinstance(value, int | float) and abs(value) <= MAX_SIZE else value


PlainNumber = BeforeValidator(plain_number)
Size = Annotated[int, Field(gt=0, le=MAX_SIZE), PlainNumber]
Folds = Annotated[int, Field(ge=2, le=MAX_SIZE), PlainNumber]
"""Parts of some texts, each of which is held out in turn."""
Count = Annotated[int, Field(ge=0, le=MAX_SIZE), PlainNumber]
Position = Annotated[int, Field(ge=-MAX_SIZE, le=MAX_SIZE), PlainNumber]
"""The place of a token; those below 0 count from the end."""
Seed = Annotated[int, Field(ge=0, lt=2**63), PlainNumber]
Temperature = Annotated[float, Field(gt=0, le=100), PlainNumber]
TopShare = Annotated[float, Field(gt=0, le=1), PlainNumber]
"""The likeliest tokens that together have so much probability."""


def check_share(value: float) -> float:
    """The share of a cache. Raises ValueError for anything else."""
    if not 0 < value <= 1:
        raise ValueError(f"must be a share of the cache, above 0 and at most 1 (got {value:g})")
    return value


Share = Annotated[float, PlainNumber, AfterValidator(check_share)]


def is_unicode(value: object) -> bool:
    """Whether a text, or each of a list, can be written: half of a surrogate pair cannot."""
    if isinstance(value, list):
        return all(map(is_unicode, value))
    return not isinstance(value, str) or not any("\ud800" <= character <= "\udfff" for character in value)


def check_text(value: str) -> str:
    """The text. Raises ValueError for blank text and for anything that is not Unicode."""
    if not value.strip():
        raise ValueError(NO_TEXT)
    if not is_unicode(value):
        raise ValueError("must be valid UTF-8 text")
    return value


NonBlankText = Annotated[str, AfterValidator(check_text)]


def shown(value: object) -> str:
    """A wrong value as an error repeats it: on one line, and not all of a long one."""
    if isinstance(value, list):
        value = f"[{', '.join(map(_str, value[:MAX_SHOWN]))}]"
    if isinstance(value, str):
        start = value[: MAX_SHOWN + 1]
        text = start if start.strip() and start.isprintable() else repr(start)
    elif isinstance(value, int) and abs(value) >= 10**MAX_SHOWN:
        text = f"a number of {value.bit_length()} bits"  # Python refuses to write the longest
    else:
        text = " ".join(_repr(value).split())
    return _cut(text)


def in_python(value: object) -> str:
    """A wrong value of a call as its caller wrote it: a text between quotes."""
    return shown(value) if isinstance(value, int) else _cut(" ".join(_repr(value).split()))


def _repr(value: object) -> str:
    if isinstance(value, str | bytes | list | tuple):
        value = value[: MAX_SHOWN + 1]
    return _written(repr, value)


def _str(value: object) -> str:
    return _written(str, value)


def _written(write: Callable[[object], str], value: object) -> str:
    try:
        return write(value)
    except Exception:  # whatever the class of a caller raises
        return f"a {type(value).__name__}"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def is_list(value: object) -> bool:
    """Whether it is a list, tuple, set, array or generator, but no text, mapping or bytes."""
    is_one = isinstance(value, str | Mapping | bytes | bytearray | memoryview)
    return isinstance(value, Iterable) and not is_one and getattr(value, "ndim", 1) > 0


def listed(value: Any) -> list[Any]:
    """The items of a list, tuple, set, array or generator; of a text what stands between its commas.

    Raises ValueError for what holds no items, and for a mapping or bytes, whose items nobody means.
    """
    if isinstance(value, str):
        return [name.strip() for name in value.split(",")]
    if not is_list(value):
        raise ValueError(f"must be a list (got {shown(value)})")
    return list(_plain(value))


def _plain(value: Any) -> Any:
    """An array as lists or a number, anything else as it is. ValueError for a tensor without such numbers."""
    try:
        return value.tolist() if hasattr(value, "tolist") else value
    except RuntimeError:  # of torch: sparse, or on the meta device
        raise ValueError(f"must hold plain numbers (got {shown(value)})") from None


NOT_A_HEAD = "must name a layer and a head, such as 5:11"
HeadName = str | tuple[int, int]
"""A head as "5:11", as "cross:5:11" in one of several stacks, as "linear:5:11" without a softmax, or as the
pair (5, 11)."""
OneOrMoreHeads = HeadName | Iterable[HeadName]
"""Several heads: a list of them, or a text with commas; (0, 1) is one head."""


def is_pair(value: Any) -> bool:
    """Whether it is a layer and a head as two numbers."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    numbers = [number.item() if getattr(number, "ndim", None) == 0 else number for number in value]
    return all(type(number) is int and 0 <= number <= MAX_SIZE for number in numbers)


def head_name(value: Any) -> str:
    """A head as `5:11`, from that or from (5, 11). Raises ValueError for anything else."""
    value = _plain(value)
    if is_pair(value):
        value = f"{index(value[0])}:{index(value[1])}"
    if not isinstance(value, str):
        raise ValueError(f"{NOT_A_HEAD} (got {shown(value)})")
    name = value.strip()
    try:
        named_head(name)
    except ValueError:
        raise ValueError(f"{NOT_A_HEAD} (got {shown(value)})") from None
    return name


def head_name_without_stack(value: Any) -> str:
    """As `head_name`, for models of one stack. Raises ValueError for a head of a stack that is named."""
    name = head_name(value)
    if named_head(name).stack:
        raise ValueError(f"{NOT_A_HEAD} (got {shown(value)})")
    return name


def head_names(value: Any) -> list[str]:
    """Heads as `5:11`, each once; (0, 1) is one head, and a text has several between commas.

    Raises ValueError for anything that is not a head.
    """
    items = [value] if isinstance(value, tuple) and is_pair(value) else listed(value)
    return list(dict.fromkeys(map(head_name, items)))


def head_names_without_stack(value: Any) -> list[str]:
    """As `head_names`, for models of one stack."""
    return list(dict.fromkeys(map(head_name_without_stack, head_names(value))))


def token_names(value: Any) -> list[str]:
    """The names of tokens, by text or position. Raises ValueError for anything else."""
    items = [value] if isinstance(value, int) else listed(value)
    names = [plain_number(item) for item in items]
    for name in names:
        if not isinstance(name, str | int):
            raise ValueError(f"must name tokens, by text or position (got {shown(name)})")
    return [str(name) for name in names]


def given_answer(value: Any) -> str | int:
    """A text, or the id of a token. Raises ValueError for anything else."""
    answer = value if isinstance(value, str | bool) else plain_number(value)
    if isinstance(answer, bool) or not isinstance(answer, str | int):
        raise ValueError(f"must be text, or the id of a token (got {shown(value)})")
    return answer


def whole_numbers(value: Any) -> list[int]:
    """Whole numbers from 0, each once, or the one. Raises ValueError for anything else."""
    items = listed(value) if is_list(value) else [value]
    numbers = [plain_number(item) for item in items]
    for number in numbers:
        if not isinstance(number, int) or not 0 <= number <= MAX_SIZE:
            raise ValueError(f"must be whole numbers from 0 (got {shown(number)})")
    return list(dict.fromkeys(numbers))


def shares(value: Any) -> list[float]:
    """Distinct shares of a cache, from one or several. Raises ValueError for others and an empty list."""
    items = listed(value) if is_list(value) else [value]
    numbers = [plain_number(item) for item in items]
    for number in numbers:
        if not isinstance(number, int | float):
            raise ValueError(f"must be a number (got {shown(number)})")
        check_share(number)
    if not numbers:
        raise ValueError("must hold at least one share of the cache (got none)")
    return list(dict.fromkeys(map(float, numbers)))


def one_of(known: Collection[str]) -> Callable[[Any], str]:
    """A check for one of the names that are known."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in known:
            raise ValueError(must_be_one_of(shown(value), known))
        return value

    return check


def named(known: Collection[str]) -> Callable[[Any], list[str]]:
    """A check for some of the names that are known, in a list or between commas; each counts once."""
    check = one_of(known)
    return lambda value: list(dict.fromkeys(map(check, listed(value))))


CheckedRows = TypeVar("CheckedRows")


def rows_with(*columns: str, given_as: Callable[[list[Any]], CheckedRows]) -> Callable[[Any], CheckedRows]:
    """A check for rows of a survey that have these columns, which gives them in another form."""

    def check(value: Any) -> CheckedRows:
        rows: list[Any] = listed(value) if is_list(value) else [value]
        for row in rows:
            if not isinstance(row, Mapping):
                raise ValueError(f"must be rows of a survey, each a dict (got {shown(row)})")
            if lacking := [name for name in columns if name not in row]:
                raise ValueError(f"must be rows of a survey, each with {lacking[0]} (got {shown(row)})")
        return given_as(rows)

    return check


def conditions(value: Any) -> list[str]:
    """Conditions as "max_score < 100", from one or several. Raises ValueError for anything but text."""
    texts: list[Any] = listed(value) if is_list(value) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"must be a condition or a list of them (got {shown(value)})")
    return texts


def _fits(name: str) -> bool:
    return all(len(fsencode(part)) <= MAX_FILE_NAME for part in Path(name).parts)


MAX_FILE_NAME = 255
"""The bytes of a folder's or file's name, which file systems limit."""


def file_name(value: Any) -> str:
    """The name of a file. Raises ValueError for anything that cannot be one."""
    name = fspath(value) if isinstance(value, str | PathLike) else None
    with suppress(UnicodeEncodeError):  # half of a surrogate pair names no file
        if isinstance(name, str) and name.strip() and "\0" not in name:
            if not _fits(name):
                raise ValueError(
                    f"must be at most {MAX_FILE_NAME} bytes between slashes (got {shown(value)})"
                )
            return name
    raise ValueError(f"must be a file's name (got {shown(value)})")


def by(check: Callable[[Any], Any]) -> PlainValidator:
    """A kind of value by the function that gives it, or raises ValueError with what it must be."""
    return PlainValidator(check)


HeadArgument = Annotated[HeadName, by(head_name)]
HeadsArgument = Annotated[OneOrMoreHeads, by(head_names)]
HeadWithoutStack = Annotated[HeadName, by(head_name_without_stack)]
HeadsWithoutStack = Annotated[OneOrMoreHeads, by(head_names_without_stack)]
TokenNames = Annotated[str | int | Iterable[str | int], by(token_names)]
AnswerArgument = Annotated[str | int, by(given_answer)]
Layers = Annotated[int | Iterable[int], by(whole_numbers)]
Budgets = Annotated[float | Iterable[float], by(shares)]
KeyValueBits = Annotated[Literal[8, 4], PlainNumber]
Conditions = Annotated[str | Iterable[str], by(conditions)]
Every = Annotated[int, Field(ge=1, le=MAX_SIZE), PlainNumber]
FilePath = Annotated[str | PathLike[str], by(file_name)]


MESSAGES = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must hold at least {min_length}",
    "literal_error": "must be one of {expected}",
    "int_parsing_size": "must be a smaller whole number",
    "finite_number": "must be a finite number",
    "string_type": "must be text",
    "string_unicode": "must be valid UTF-8 text",
    "is_instance_of": "must be a {class}",
    "callable_type": "must be a function",
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "must be a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "must be true or false"),
    **dict.fromkeys(("list_type", "tuple_type"), "must be a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "dataclass_type"), "must be an object"),
}


def _choices(context: Mapping[str, Any]) -> str:
    return str(context["expected"]).replace("'", "")


def expectation(error: ErrorDetails) -> str:
    """What pydantic expected of a value, in attn's wording."""
    context = error.get("ctx", {})
    if error["type"] == "value_error":
        return str(context["error"])
    if error["type"] not in MESSAGES:
        return error["msg"]
    words = {key: f"{value:g}" if isinstance(value, float) else value for key, value in context.items()}
    if "expected" in context:
        words["expected"] = _choices(context)
    return MESSAGES[error["type"]].format(**words)


def error_message(error: ErrorDetails) -> str:
    """One line for an error of pydantic's: what the value must be, and what it is."""
    if error["type"] == "value_error":
        return expectation(error)
    is_of_other_type = error["type"].endswith("_type")
    wanted = expectation(error)
    got = f"got {in_python(error['input']) if is_of_other_type else shown(error['input'])}"
    if error["type"] == "literal_error" and isinstance(error["input"], str):
        known = _choices(error["ctx"]).replace(" or ", ", ").split(", ")
        if hint := nearest(error["input"][:MAX_SHOWN], known):
            return f"{got}{hint}: {wanted}"
    return f"{wanted} ({got})"


class WrongArgument(UserError, ValueError):
    """An argument of a call that cannot be: a line for each, `heads: must ...`."""


def _kind(annotation: Any) -> Any:
    """An annotation as pydantic takes it with a config: where a function of ours checks, that alone."""
    has_check = any(isinstance(data, PlainValidator) for data in getattr(annotation, "__metadata__", ()))
    return Annotated[Any, *annotation.__metadata__] if has_check else annotation


Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def checked(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """The function, whose arguments are first held to their annotations and taken as these make them.

    WrongArgument with a line for each that does not fit. A wrong keyword stays Python's TypeError. Numbers of
    numpy and torch are taken, a truth value or a text in the place of a number is not.
    """
    parameters = signature(function)
    hints = get_type_hints(function, include_extras=True)

    @cache
    def kinds() -> dict[str, TypeAdapter[Any]]:
        """Each parameter's check, made at the first call, as most functions are never called."""
        config = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False, strict=True)
        takes_one = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        return {
            name: TypeAdapter(_kind(hints[name]), config=config)
            for name, parameter in parameters.parameters.items()
            if name in hints and parameter.kind in takes_one
        }

    @wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        try:
            given = parameters.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # Python's message, with the function's name
        lines = []
        for name, value in given.arguments.items():
            if name in kinds():
                try:
                    given.arguments[name] = kinds()[name].validate_python(value)
                except ValidationError as failure:
                    lines.append(f"{name}: {error_message(failure.errors()[0])}")
        if lines:
            raise WrongArgument(*lines)
        return function(*given.args, **given.kwargs)

    # help() shows the accepted types, not the checks.
    plain = get_type_hints(function)
    of_help = [
        each.replace(annotation=plain.get(name, each.annotation))
        for name, each in parameters.parameters.items()
    ]
    call.__dict__["__signature__"] = parameters.replace(parameters=of_help)
    return call
