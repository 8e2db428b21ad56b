"""Variants that can be combined, and the errors for those that cannot."""

from pathlib import Path

import pytest

from attncli.errors import UserError
from attncli.features.attention.settings import POSITIONS
from attncli.settings import SPECS
from attncli.settings.config_file import ConfigFile, resolved_yaml
from attncli.settings.fields import Given, build_spec


def errors_of(experiment: str, **settings: object) -> list[str]:
    try:
        build_spec(SPECS[experiment], {key: Given(value, "here") for key, value in settings.items()})
    except UserError as error:
        return list(error.lines)
    return []


REFUSED = [
    ("self", {"rope": True, "alibi": True}, "rope: cannot be combined with alibi: give one of them"),
    ("self", {"rope": True, "head_dim": 7}, "head_dim (7) must be divisible by 2 with rope"),
    ("self", {"rope": True, "projection": "none", "embed_dim": 9}, "head_dim (9) must be divisible "
     "by 2 with rope"),
    ("multihead", {"differential": True, "head_dim": 5}, "head_dim (5) must be divisible by 2 with "
     "differential"),
    ("self", {"rope": True, "differential": True, "head_dim": 6}, "head_dim (6) must be divisible by 4 with "
     "rope and differential"),
    ("cross", {"temperature": 0}, "temperature: must be greater than 0 (got 0): 0.01, for example, makes "
     "rows nearly one-hot"),
    ("self", {"relative_bias": True, "max_distance": 8}, "max_distance: must be greater than 8, the number of "
     "distances with their own bucket (got 8)"),
    ("self", {"relative_bias": True, "max_distance": 16, "causal": True}, "max_distance: must be greater than "
     "16, the number of distances with their own bucket (got 16)"),
    ("self", {"softcap": 0}, "softcap: must be at least 1e-30 (got 0)"),
    ("cross", {"softcap": "1e300"}, "softcap: must be at most 1e+30 (got 1e300)"),
    ("self", {"scale": "-1e300"}, "scale: must be between -1e+38 and 1e+38 (got -1e300)"),
    ("self", {"window": 0}, "window: must be greater than 0 (got 0)"),
    ("self", {"alibi": True, "engine": "streaming"}, "alibi: needs engine dense: streaming adds no bias to "
     "scores"),
]  # fmt: skip


@pytest.mark.parametrize(("experiment", "settings", "line"), REFUSED, ids=lambda value: str(value)[:40])
def test_invalid_combinations_are_refused_in_one_line(
    experiment: str, settings: dict[str, object], line: str
) -> None:
    assert errors_of(experiment, **settings) == [f"here: {line}"]


def test_only_one_scheme_of_positions() -> None:
    for first in POSITIONS:
        for second in POSITIONS:
            assert bool(errors_of("self", **{first: True, second: True})) == (first != second)


@pytest.mark.parametrize("key", [*POSITIONS, "window", "causal"])
def test_two_texts_share_no_positions(key: str) -> None:
    (line,) = errors_of("cross", **{key: True})
    assert line.startswith(f"here: {key}: unknown key")


@pytest.mark.parametrize("experiment", ["self", "multihead", "cross"])
def test_everything_else_goes_together(experiment: str) -> None:
    together = {"rope": True, "window": 2, "qk_norm": True, "softcap": 1.0, "temperature": 2, "sink": 0}
    own = {key: value for key, value in together.items() if key in SPECS[experiment].model_fields}
    assert not errors_of(experiment, **own)
    assert not errors_of(
        experiment, **{key: value for key, value in own.items() if key != "sink"}, differential=True
    )


def test_resolved_variants_can_be_run_again(tmp_path: Path) -> None:
    given = {"rope": Given(True, "--rope"), "sink": Given("0", "--sink"), "window": Given(3, "--window")}
    spec = build_spec(SPECS["self"], given)
    text = resolved_yaml(spec, given)
    assert "rope: true  # --rope\nrope_base: 10000.0  # default\nalibi: false  # default\n" in text
    assert "sink: 0.0  # --sink\n" in text and "# num_buckets: none\n" in text
    path = tmp_path / "again.yaml"
    path.write_text(text)
    (entry,) = ConfigFile(path).entries()
    assert entry.spec == spec
