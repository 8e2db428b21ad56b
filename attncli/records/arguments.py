"""Kinds of values shared by settings and calls from Python, and the validation of calls.

A Spec's field and a function's parameter have the same annotation, such as `Size`; `checked` validates a call
before anything is read or loaded.
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
"""The largest size or count: sums and products of a few such numbers still fit into 64 bits."""
MAX_QUOTED = 60
"""The most characters of an invalid value in an error."""


def plain_number(value: Any) -> Any:
    """Convert a NumPy or torch number to Python's. Raises ValueError for a Boolean, an int in Python."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, bool):
        raise ValueError(f"must be a number (got {value})")
    return value


def number_as_text(value: Any) -> Any:
    """Return a number as a string, for settings with a few choices; other values are unchanged.

    Raises ValueError for a Boolean.
    """
    value = plain_number(value)
    return str(value) if isinstance(value, int | float) and abs(value) <= MAX_SIZE else value


PlainNumber = BeforeValidator(plain_number)
Size = Annotated[int, Field(gt=0, le=MAX_SIZE), PlainNumber]
Folds = Annotated[int, Field(ge=2, le=MAX_SIZE), PlainNumber]
"""The number of parts that texts are split into, each of which is held out in turn."""
Count = Annotated[int, Field(ge=0, le=MAX_SIZE), PlainNumber]
Position = Annotated[int, Field(ge=-MAX_SIZE, le=MAX_SIZE), PlainNumber]
"""The position of a token; negative ones count from the end."""
Seed = Annotated[int, Field(ge=0, lt=2**63), PlainNumber]
Temperature = Annotated[float, Field(gt=0, le=100), PlainNumber]
TopShare = Annotated[float, Field(gt=0, le=1), PlainNumber]
"""The total probability of the likeliest tokens, from which one is sampled."""


def check_share(value: float) -> float:
    """Return the share of a cache. Raises ValueError for any other value."""
    if not 0 < value <= 1:
        raise ValueError(f"must be a share of the cache, above 0 and at most 1 (got {value:g})")
    return value


Share = Annotated[float, PlainNumber, AfterValidator(check_share)]


def is_unicode(value: object) -> bool:
    """Return True if a string, or every string of a list, is valid Unicode, without half a surrogate pair."""
    if isinstance(value, list):
        return all(map(is_unicode, value))
    return not isinstance(value, str) or not any("\ud800" <= character <= "\udfff" for character in value)


def check_text(value: str) -> str:
    """Return the string. Raises ValueError if it is blank or not valid Unicode."""
    if not value.strip():
        raise ValueError(NO_TEXT)
    if not is_unicode(value):
        raise ValueError("must be valid UTF-8 text")
    return value


NonBlankText = Annotated[str, AfterValidator(check_text)]


def shown(value: object) -> str:
    """Format an invalid value for an error message: on one line, and shortened if it is long."""
    if isinstance(value, list):
        value = f"[{', '.join(map(_str, value[:MAX_QUOTED]))}]"
    if isinstance(value, str):
        start = value[: MAX_QUOTED + 1]
        text = start if start.strip() and start.isprintable() else repr(start)
    elif isinstance(value, int) and abs(value) >= 10**MAX_QUOTED:
        text = f"a {value.bit_length()}-bit number"  # Python refuses to format the longest integers
    else:
        text = " ".join(_repr(value).split())
    return _cut(text)


def in_python(value: object) -> str:
    """Format an invalid argument as in Python source, with quotes around strings."""
    return shown(value) if isinstance(value, int) else _cut(" ".join(_repr(value).split()))


def _repr(value: object) -> str:
    if isinstance(value, str | bytes | list | tuple):
        value = value[: MAX_QUOTED + 1]
    return _written(repr, value)


def _str(value: object) -> str:
    return _written(str, value)


def _written(write: Callable[[object], str], value: object) -> str:
    try:
        return write(value)
    except Exception:  # the caller's class may raise anything
        return f"a {type(value).__name__}"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_QUOTED else f"{text[: MAX_QUOTED - 3]}..."


def is_list(value: object) -> bool:
    """Return True for a list, tuple, set, array or generator, but not for a string, a mapping or bytes."""
    is_one = isinstance(value, str | Mapping | bytes | bytearray | memoryview)
    return isinstance(value, Iterable) and not is_one and getattr(value, "ndim", 1) > 0


def listed(value: Any) -> list[Any]:
    """Return the items of a list, tuple, set, array or generator, or the comma-separated parts of text."""
    if isinstance(value, str):
        return [name.strip() for name in value.split(",")]
    if not is_list(value):
        raise ValueError(f"must be a list (got {shown(value)})")
    return list(_plain(value))


def _plain(value: Any) -> Any:
    """Convert an array to lists or a number; keep other values. Raises ValueError for sparse tensors."""
    try:
        return value.tolist() if hasattr(value, "tolist") else value
    except RuntimeError:  # torch: sparse, or on the meta device
        raise ValueError(f"must hold plain numbers (got {shown(value)})") from None


NOT_A_HEAD = "must be LAYER:HEAD, such as 5:11"
HeadName = str | tuple[int, int]
"""A head as "5:11", "cross:5:11" (in one of several stacks), "linear:5:11" (without a softmax) or (5, 11)."""
OneOrMoreHeads = HeadName | Iterable[HeadName]
"""Heads as a list or a comma-separated text; (0, 1) is a single head."""


def is_pair(value: Any) -> bool:
    """Return True for a layer and a head given as two numbers."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    numbers = [number.item() if getattr(number, "ndim", None) == 0 else number for number in value]
    return all(type(number) is int and 0 <= number <= MAX_SIZE for number in numbers)


def head_name(value: Any) -> str:
    """Return the head as `5:11`, given in that form or as (5, 11). Raises ValueError for any other value."""
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
    """Behave like `head_name`, but raise ValueError for a head with a stack."""
    name = head_name(value)
    if named_head(name).stack:
        raise ValueError(f"{NOT_A_HEAD} (got {shown(value)})")
    return name


def head_names(value: Any) -> list[str]:
    """Return distinct heads as `5:11`; (0, 1) is a single head, and a string may list several heads.

    Raises ValueError for any other value.
    """
    items = [value] if isinstance(value, tuple) and is_pair(value) else listed(value)
    return list(dict.fromkeys(map(head_name, items)))


def head_names_without_stack(value: Any) -> list[str]:
    """Behave like `head_names`, but raise ValueError for a head with a stack."""
    return list(dict.fromkeys(map(head_name_without_stack, head_names(value))))


def token_names(value: Any) -> list[str]:
    """Return the names of tokens, given by text or position. Raises ValueError for any other value."""
    items = [value] if isinstance(value, int) else listed(value)
    names = [plain_number(item) for item in items]
    for name in names:
        if not isinstance(name, str | int):
            raise ValueError(f"must name tokens, by text or position (got {shown(name)})")
    return [str(name) for name in names]


def text_or_token_id(value: Any) -> str | int:
    """Return a text or a token id. Raises ValueError for any other value."""
    answer = value if isinstance(value, str | bool) else plain_number(value)
    if isinstance(answer, bool) or not isinstance(answer, str | int):
        raise ValueError(f"must be text or a token id (got {shown(value)})")
    return answer


def whole_numbers(value: Any) -> list[int]:
    """Return distinct whole numbers from 0, given as one or more. Raises ValueError for any other value."""
    items = listed(value) if is_list(value) else [value]
    numbers = [plain_number(item) for item in items]
    for number in numbers:
        if not isinstance(number, int) or not 0 <= number <= MAX_SIZE:
            raise ValueError(f"must be whole numbers from 0 (got {shown(number)})")
    return list(dict.fromkeys(numbers))


def shares(value: Any) -> list[float]:
    """Return distinct shares of a cache, given as one or more. Raises ValueError for other values or none."""
    items = listed(value) if is_list(value) else [value]
    numbers = [plain_number(item) for item in items]
    for number in numbers:
        if not isinstance(number, int | float):
            raise ValueError(f"must be a number (got {shown(number)})")
        check_share(number)
    if not numbers:
        raise ValueError("must hold at least one share of the cache (got none)")
    return list(dict.fromkeys(map(float, numbers)))


def one_of(names: Collection[str]) -> Callable[[Any], str]:
    """Return a validator that accepts one of the names."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise ValueError(must_be_one_of(shown(value), names))
        return value

    return check


def some_of(names: Collection[str]) -> Callable[[Any], list[str]]:
    """Return a validator that accepts distinct names, in a list or comma-separated."""
    check = one_of(names)
    return lambda value: list(dict.fromkeys(map(check, listed(value))))


CheckedRows = TypeVar("CheckedRows")


def rows_with(*columns: str, convert: Callable[[list[Any]], CheckedRows]) -> Callable[[Any], CheckedRows]:
    """Return a validator that checks and converts rows of a survey with these columns."""

    def check(value: Any) -> CheckedRows:
        rows: list[Any] = listed(value) if is_list(value) else [value]
        for row in rows:
            if not isinstance(row, Mapping):
                raise ValueError(f"must be rows of a survey, each a dict (got {shown(row)})")
            if missing := [name for name in columns if name not in row]:
                raise ValueError(f"must be rows of a survey, each with {missing[0]} (got {shown(row)})")
        return convert(rows)

    return check


def conditions(value: Any) -> list[str]:
    """Return conditions like "max_score < 100" from one or more strings. Raises ValueError otherwise."""
    texts: list[Any] = listed(value) if is_list(value) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"must be a condition or a list of them (got {shown(value)})")
    return texts


def _fits(name: str) -> bool:
    return all(len(fsencode(part)) <= MAX_FILE_NAME for part in Path(name).parts)


MAX_FILE_NAME = 255
"""The most bytes in the name of a file or folder, a limit of file systems."""


def file_name(value: Any) -> str:
    """Return the name of a file. Raises ValueError for anything that cannot be a file name."""
    name = fspath(value) if isinstance(value, str | PathLike) else None
    with suppress(UnicodeEncodeError):  # a file name cannot contain half a surrogate pair
        if isinstance(name, str) and name.strip() and "\0" not in name:
            if not _fits(name):
                raise ValueError(
                    f"must have at most {MAX_FILE_NAME} bytes between slashes (got {shown(value)})"
                )
            return name
    raise ValueError(f"must be a file name (got {shown(value)})")


def by(check: Callable[[Any], Any]) -> PlainValidator:
    """Make a kind of value from a function that converts the value or raises ValueError."""
    return PlainValidator(check)


HeadArgument = Annotated[HeadName, by(head_name)]
HeadsArgument = Annotated[OneOrMoreHeads, by(head_names)]
HeadWithoutStack = Annotated[HeadName, by(head_name_without_stack)]
HeadsWithoutStack = Annotated[OneOrMoreHeads, by(head_names_without_stack)]
TokenNames = Annotated[str | int | Iterable[str | int], by(token_names)]
AnswerArgument = Annotated[str | int, by(text_or_token_id)]
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
    """Return what pydantic expected of a value, in attn's own words."""
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
    """Return one line for a pydantic error: what the value must be and what it actually is."""
    if error["type"] == "value_error":
        return expectation(error)
    has_other_type = error["type"].endswith("_type")
    requirement = expectation(error)
    got = f"got {in_python(error['input']) if has_other_type else shown(error['input'])}"
    if error["type"] == "literal_error" and isinstance(error["input"], str):
        choices = _choices(error["ctx"]).replace(" or ", ", ").split(", ")
        if hint := nearest(error["input"][:MAX_QUOTED], choices):
            return f"{got}{hint}: {requirement}"
    return f"{requirement} ({got})"


class WrongArgument(UserError, ValueError):
    """Invalid arguments of a call, with one line for each, like `heads: must ...`."""


def _kind(annotation: Any) -> Any:
    """Reduce an annotation to our validator if it has one, so that pydantic adds no checks of its own."""
    has_check = any(isinstance(data, PlainValidator) for data in getattr(annotation, "__metadata__", ()))
    return Annotated[Any, *annotation.__metadata__] if has_check else annotation


Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def checked(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """Validate the arguments of a function against its annotations and convert them before each call.

    Raises WrongArgument with one line per invalid argument. A wrong keyword still raises Python's TypeError.
    NumPy and torch numbers are accepted; a Boolean or a string in place of a number is not.
    """
    parameters = signature(function)
    hints = get_type_hints(function, include_extras=True)

    @cache
    def kinds() -> dict[str, TypeAdapter[Any]]:
        """Return each parameter's validator, built at the first call: most functions are never called."""
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
            bound = parameters.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # Python's message, with the function's name
        lines = []
        for name, value in bound.arguments.items():
            if name in kinds():
                try:
                    bound.arguments[name] = kinds()[name].validate_python(value)
                except ValidationError as failure:
                    lines.append(f"{name}: {error_message(failure.errors()[0])}")
        if lines:
            raise WrongArgument(*lines)
        return function(*bound.args, **bound.kwargs)

    # help() shows the accepted types instead of the checks.
    plain = get_type_hints(function)
    unchecked = [
        each.replace(annotation=plain.get(name, each.annotation))
        for name, each in parameters.parameters.items()
    ]
    call.__dict__["__signature__"] = parameters.replace(parameters=unchecked)
    return call
