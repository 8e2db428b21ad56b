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
    title = "What each head looks at"
    group = "Input"
    examples = ()

    relations: TextPath | None = Field(
        None,
        description="a CoNLL-U file of parsed sentences: how often each head looks from a word to its "
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
    title = "What each head knows of pairs"
    group = "Input"
    examples = ()
    off_keys = frozenset({"pairs", "apart", "symmetric", "apc", "method", "folds"})
    needs: ClassVar[Mapping[str, str]] = {"apc": "symmetric"}

    pairs: Annotated[
        TextPath | None,
        Everyday("texts with pairs that are known: which heads know them"),
    ] = Field(
        None,
        description="which heads look from one to the other of pairs that are known: JSON Lines or CSV with "
        "text and pairs ([[0, 3]]), lines `source ||| translation ||| 0-0 1-1`, or CoNLL-U; - reads stdin",
    )
    apart: Count = Field(0, description="with `pairs`: leave out positions that are less than N apart")
    method: PairMethod = Field(
        "heads",
        description="with `pairs`: heads one by one; also the mean of the best; or a logistic regression "
        "over all with an L1 penalty",
    )
    symmetric: bool = Field(
        default_factory=lambda data: data.get("method") == "logistic",
        description="with `pairs`: pairs have no direction, as contacts: add the weights of both (default "
        "with `method` logistic)",
    )
    apc: bool = Field(
        default_factory=lambda data: data.get("method") == "logistic" and data.get("symmetric", False),
        description="with `symmetric`: take the average product correction of the weights (Dunn et al. 2008; "
        "default with `method` logistic)",
    )
    folds: Folds | None = Field(
        None, description="with `pairs`: hold out each of N parts of the texts in turn, instead of one half"
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
