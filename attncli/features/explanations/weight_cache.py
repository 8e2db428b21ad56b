"""A model's learned head weights in the user's cache."""

from pathlib import Path
from typing import TYPE_CHECKING

from attncli.core.names import named_head
from attncli.errors import UserError
from attncli.features.source.kept_heads import cache_file, write_cache_file
from attncli.settings.models import ModelSpec
from attncli.system.plain_text import parsed_json

if TYPE_CHECKING:
    from attncli.features.explanations.results import LearnedWeights

WEIGHTS = "head-weights"


def cached_weights(spec: ModelSpec) -> dict[str, float] | None:
    """Return the learned weights of a model's heads, or None if no weights are cached."""
    place = cache_file(spec, WEIGHTS)
    if place is None or not place.exists():
        return None
    try:
        match parsed_json(place.read_bytes()):
            case {"weights": dict(weights)} if all(isinstance(weight, float) for weight in weights.values()):
                heads = [named_head(str(name)) for name in weights]
                names = [f"{head.layer}:{head.head}" for head in heads]
                return dict(zip(names, weights.values(), strict=True))
        raise ValueError("without weights")
    except (OSError, ValueError):
        raise UserError(
            f"learn: {place} is damaged: run attn source PROMPTS --learn to rewrite the file"
        ) from None


def cache_weights(spec: ModelSpec, result: "LearnedWeights") -> Path | None:
    """Write the weights of all heads to the cache. Return None if there is no cache folder."""
    about = {"prompts": result.fit.prompts, "runs": result.num_runs, "seed": result.seed}
    return write_cache_file(spec, WEIGHTS, {**about, "weights": result.by_name}, "learn")
