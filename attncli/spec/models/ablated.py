"""The setting that takes heads out of a model before others are looked at."""

from typing import Annotated

from pydantic import Field, field_validator

from attncli.spec.fields import Group
from attncli.spec.models.head_places import check_head_places, split_names
from attncli.spec.models.pretrained import ModelSpec


class AblatedSpec(ModelSpec):
    """A model some of whose heads give nothing."""

    ablate: Annotated[list[str], Group("Model")] = Field(
        [], description="take out these heads, as LAYER:HEAD: as if their columns of W_O were zero"
    )

    _ablate_names = field_validator("ablate", mode="before")(split_names)
    _ablate = field_validator("ablate")(check_head_places)

    def unreported_keys(self) -> frozenset[str]:
        return super().unreported_keys() | (frozenset() if self.ablate else {"ablate"})
