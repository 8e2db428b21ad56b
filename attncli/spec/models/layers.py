"""The settings of attention that a model may have computed: which layer of it, and which head."""

from typing import Any, ClassVar

from pydantic import Field

from attncli.spec.fields import Contradictions, Count, Spec, contradiction
from attncli.spec.models.head_places import AblatedSpec, named_head
from attncli.spec.models.pretrained import WordsSpec

KEPT_KEYS = {"sentence", "file", "context", "context_file", "tokenizer", "top_k", "explain", "token", "head"}
"""The settings of attention on sampled weights that a model leaves in effect."""


def _first_of_model(data: dict[str, Any]) -> int | None:
    return 0 if data["model"] is not None else None


class LayerSpec(WordsSpec, AblatedSpec):
    """Which layer of a model, where there is one."""

    model_module = "attncli.experiments.model_attention.experiment"
    model_keys: ClassVar[frozenset[str]] = frozenset({"layer", "ablate", "words"})
    # Whether it is about all heads of the layer, and about a second text.
    shows_all_heads: ClassVar[bool] = True
    reads_context: ClassVar[bool] = False

    layer: Count | None = Field(
        default_factory=_first_of_model,
        description="the model's layer, from 0 (default: the first that attends)",
    )

    def unused_keys(self) -> frozenset[str]:
        return super().unused_keys() | self._keys_of_the_other_source()

    def _keys_of_the_other_source(self) -> frozenset[str]:
        """The settings of a model where weights are sampled, those of sampling where there is a model."""
        own = self.model_keys | LayerSpec.model_fields.keys()
        if self.model is None:
            return own - {*Spec.model_fields, "model"}
        return frozenset(type(self).model_fields.keys() - own - KEPT_KEYS)

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if self.model is None:
            for key in self.given(*sorted(self.model_keys, reverse=True)):
                yield contradiction(key, "needs model", "model")
        else:
            for name in self.ablate:
                above = self.layer is not None and named_head(name).layer > self.layer
                if above and named_head(name).stack != "cross":
                    message = f"must be below the layer that is shown, {self.layer} (got {name})"
                    yield contradiction("ablate", message, "layer")
            for key in self.given(*sorted(self._keys_of_the_other_source())):
                yield contradiction(key, "cannot be combined with model, which has its own", "model")
            if self.words and self.given("explain"):
                yield contradiction(
                    "words", "cannot be combined with explain, which follows tokens", "explain"
                )


class HeadSpec(LayerSpec):
    """Which head of the layer, too."""

    model_keys = frozenset({"layer", "head", "ablate", "words"})
    shows_all_heads = False

    head: Count | None = Field(
        default_factory=_first_of_model, description="the layer's head, from 0 (default: 0)"
    )
