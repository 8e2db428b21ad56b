"""The settings of `attn heads --pairs` and `attn heads --relations`."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from attncli.core.names import PairMethod
from attncli.models.text_files import check_lines
from attncli.records.arguments import Folds
from attncli.settings.fields import Count, Everyday, Extra
from attncli.settings.models import AblatedSpec, ModelOfHeadsSpec
from attncli.settings.text import TextPath, Texts


class RelationsSpec(AblatedSpec, ModelOfHeadsSpec):
    experiment = "heads"
    title = "Heads along syntactic relations"
    group = "Input"
    examples = ()

    relations: TextPath | None = Field(
        None,
        description="a CoNLL-U file of parsed sentences: measure how often each head looks from a word to "
        "its "
        "syntactic head, and back; - reads stdin",
    )

    def extras(self) -> Iterator[Extra]:
        yield from super().extras()
        if self.relations is not None:
            yield Extra("relations", "models", ("conllu",))

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return "--show all", "-o relations.html"

    def check_texts(self, texts: Texts) -> None:
        from attncli.features.pairs.pair_files import SentenceFile

        file = str(self.relations)
        check_lines(file, lambda: SentenceFile(file))

    def reads_many_texts(self) -> bool:
        return True

    def result_kind(self) -> str:
        return "heads of relations"


class PairsSpec(AblatedSpec, ModelOfHeadsSpec):
    experiment = "heads"
    title = "Heads on known pairs"
    group = "Input"
    examples = ()
    off_keys = frozenset({"pairs", "apart", "symmetric", "apc", "method", "folds"})
    needs: ClassVar[Mapping[str, str]] = {"apc": "symmetric"}

    pairs: Annotated[
        TextPath | None,
        Everyday("texts with known pairs: find the heads that link them"),
    ] = Field(
        None,
        description="find the heads that look from one position of known pairs to the other: JSON Lines "
        "or CSV with text and pairs ([[0, 3]]), lines `source ||| translation ||| 0-0 1-1`, "
        "or CoNLL-U; - reads stdin",
    )
    apart: Count = Field(0, description="with `pairs`: ignore positions less than N apart")
    method: PairMethod = Field(
        "heads",
        description="with `pairs`: measure single heads; also the mean of the best heads; or an L1 "
        "logistic regression over all heads",
    )
    symmetric: bool = Field(
        default_factory=lambda data: data.get("method") == "logistic",
        description="with `pairs`: pairs have no direction, as with contacts: add the weights of both "
        "(default with `method` logistic)",
    )
    apc: bool = Field(
        default_factory=lambda data: data.get("method") == "logistic" and data.get("symmetric", False),
        description="with `symmetric`: apply the average product correction to the weights (Dunn et al. "
        "2008; default with `method` logistic)",
    )
    folds: Folds | None = Field(
        None,
        description="with `pairs`: split the texts into N parts and hold out each in turn, instead "
        "of one half",
    )

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        method = "mean" if settings.get("method") == "logistic" else "logistic"
        return "--show all", f"--method {method}", "--folds 5", "-o pairs.html"

    def check_texts(self, texts: Texts) -> None:
        from attncli.features.pairs.pair_files import open_pairs

        file = str(self.pairs)
        check_lines(file, lambda: open_pairs(file))

    def reads_many_texts(self) -> bool:
        return True

    def unmeasured(self) -> set[str]:
        return super().unmeasured() | ({"regression"} if self.method != "logistic" else set())

    def result_kind(self) -> str:
        return "heads of pairs"
