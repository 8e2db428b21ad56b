"""The built-in features by name, copied from their cards by `python tools/write_index.py`.

Commands, kinds of results, views and everything else on the cards come from this table: help imports no
feature.
"""

from collections.abc import Mapping
from functools import cache as computed_once
from typing import TYPE_CHECKING

from attncli.feature import Feature, LayerSource, Question, ReadingKind, View, features_in_use

if TYPE_CHECKING:
    from attncli.features.ablate.door import ablate as ablate
    from attncli.features.cache.door import cache as cache
    from attncli.features.cache.door import cache_policies as cache_policies
    from attncli.features.circuit.door import compositions as compositions
    from attncli.features.circuit.door import head_edges as head_edges
    from attncli.features.diff.differences import changed_heads as changed_heads
    from attncli.features.diff.differences import head_differences as head_differences
    from attncli.features.diff.door import text_differences as text_differences
    from attncli.features.examples.door import examples as examples
    from attncli.features.explanations.door import compare_explanations as compare_explanations
    from attncli.features.explanations.door import explanations as explanations
    from attncli.features.explanations.door import learned_head_weights as learned_head_weights
    from attncli.features.generate.door import generate as generate
    from attncli.features.heads.door import heads as heads
    from attncli.features.heads.door import survey as survey
    from attncli.features.heads.door import survey_texts as survey_texts
    from attncli.features.pairs.door import pair_table as pair_table
    from attncli.features.pairs.door import pairs as pairs
    from attncli.features.pairs.door import relations as relations
    from attncli.features.pictures.reading import read_picture as read_picture
    from attncli.features.record.door import Recording as Recording
    from attncli.features.record.door import layers_of as layers_of
    from attncli.features.record.door import record as record
    from attncli.features.separate.door import apply_detector as apply_detector
    from attncli.features.separate.door import read_detector as read_detector
    from attncli.features.separate.door import separate as separate
    from attncli.features.show.door import read_cache as read_cache
    from attncli.features.sound.reading import read_sound as read_sound
    from attncli.features.source.door import answer_sources as answer_sources
    from attncli.features.source.door import retrieving_heads as retrieving_heads
    from attncli.features.watch.door import Watch as Watch
    from attncli.features.why.door import score_parts as score_parts
    from attncli.features.why.door import why as why
    from attncli.features.words.door import aligning_heads as aligning_heads
    from attncli.features.words.door import spoken_words as spoken_words

__all__ = ["Recording", "Watch", "ablate", "aligning_heads", "answer_sources", "apply_detector", "cache", "cache_policies", "changed_heads", "compare_explanations", "compositions", "examples", "explanations", "generate", "head_differences", "head_edges", "heads", "layers_of", "learned_head_weights", "pair_table", "pairs", "read_cache", "read_detector", "read_picture", "read_sound", "record", "relations", "retrieving_heads", "score_parts", "separate", "spoken_words", "survey", "survey_texts", "text_differences", "why"]
"""Functions, for type checkers: at run time `attncli.NAME` imports them."""

FEATURES: dict[str, Feature] = {
    "lesson": Feature(
        questions=(
            Question(
                name="lesson",
                summary="Short lessons that run in the terminal",
                group="Learn",
                command="attncli.features.lesson.question:command",
                synonyms="tutorial learn docs course examples list",
            ),
        ),
    ),
    "average": Feature(
        questions=(
            Question(
                name="average",
                summary="Average each token with its past, in three ways",
                group="Learn",
                spec="attncli.features.average.question:AverageSpec",
            ),
        ),
        results={
            "average": "attncli.features.average.results:AverageStatistics",
        },
        screens={
            "attncli.features.average.results:AverageStatistics": "attncli.features.average.screens:AVERAGE_SCREEN",
        },
        lessons=("attncli.features.average:lessons/12-dot-product.md",),
    ),
    "attention": Feature(
        questions=(
            Question(
                name="self",
                summary="Self-attention of one sentence, with one head",
                group="See",
                spec="attncli.features.attention.settings:SelfSettings",
                page="attncli.features.attention.question:SELF",
                model_page="attncli.features.attention.in_models:PAGE",
                synonyms="attention attend sdpa self_attention single visualize",
                opens={
                    "--file": ".txt .md",
                },
            ),
            Question(
                name="multihead",
                summary="Multi-head attention of one sentence",
                group="See",
                spec="attncli.features.attention.settings:MultiheadSettings",
                page="attncli.features.attention.question:MULTIHEAD",
                model_page="attncli.features.attention.in_models:PAGE",
                synonyms="mha multi multi_head multi_head_attention",
            ),
            Question(
                name="cross",
                summary="Cross-attention from a sentence to a context",
                group="See",
                spec="attncli.features.attention.settings:CrossSettings",
                page="attncli.features.attention.question:CROSS",
                model_page="attncli.features.attention.in_models:PAGE",
                synonyms="cross_attention encoder_decoder",
            ),
        ),
        results={
            "self": "attncli.records.attention:LayerStatistics",
            "multihead": "attncli.records.attention:LayerStatistics",
            "cross": "attncli.records.attention:LayerStatistics",
        },
        screens={
            "attncli.records.attention:LayerStatistics": "attncli.features.attention.screens:ATTENTION_SCREEN",
        },
        lessons=("attncli.features.attention:lessons/01-why-attention.md", "attncli.features.attention:lessons/02-three-projections.md", "attncli.features.attention:lessons/03-heads-and-output.md", "attncli.features.attention:lessons/04-positions.md", "attncli.features.attention:lessons/05-residual-stream.md", "attncli.features.attention:lessons/06-masks-and-training.md", "attncli.features.attention:lessons/07-encoder-decoder.md", "attncli.features.attention:lessons/08-simple.md", "attncli.features.attention:lessons/09-causal.md", "attncli.features.attention:lessons/10-sentence.md", "attncli.features.attention:lessons/11-glove.md", "attncli.features.attention:lessons/14-masking.md", "attncli.features.attention:lessons/15-heads.md", "attncli.features.attention:lessons/16-variants.md"),
        docs="variants.md",
        papers={
            "self": "vaswani2017",
            "multihead": "vaswani2017",
            "cross": "bahdanau2014 vaswani2017",
            "rope": "su2021",
            "alibi": "press2021",
            "relative_bias": "raffel2020 shaw2018",
            "window": "beltagy2020",
            "qk_norm": "henry2020",
            "softcap": "bello2016 gemma2024",
            "temperature": "hinton2015",
            "sink": "miller2023 openai2025",
            "differential": "ye2024",
            "engine=streaming": "milakov2018 rabe2021 dao2022",
        },
    ),
    "scale_demo": Feature(
        questions=(
            Question(
                name="scale-demo",
                summary="Why scores are scaled: variance and sharpness",
                group="Learn",
                spec="attncli.features.scale_demo.question:ScaleDemoSpec",
                synonyms="scale scaling softmax",
            ),
        ),
        results={
            "scale-demo": "attncli.features.scale_demo.results:ScaleEffects",
        },
        screens={
            "attncli.features.scale_demo.results:ScaleEffects": "attncli.features.scale_demo.screens:SCALE_SCREEN",
        },
        lessons=("attncli.features.scale_demo:lessons/13-scaling.md",),
        papers={
            "scale-demo": "vaswani2017",
        },
    ),
    "norm": Feature(
        questions=(
            Question(
                name="norm",
                summary="Batch, layer and RMS normalisation",
                group="Learn",
                spec="attncli.features.norm.question:NormSpec",
                synonyms="layernorm layer_norm batchnorm rmsnorm normalize",
            ),
        ),
        results={
            "norm": "attncli.features.norm.results:NormEffects",
        },
        screens={
            "attncli.features.norm.results:NormEffects": "attncli.features.norm.screens:NORM_SCREEN",
        },
        papers={
            "batch_norm": "ioffe2015",
            "layer_norm": "ba2016",
            "rms_norm": "zhang2019",
        },
    ),
    "heads": Feature(
        questions=(
            Question(
                name="heads",
                summary="Attention patterns and statistics of each head of a model",
                group="Models",
                spec="attncli.settings.heads:HeadsSpec",
                page="attncli.features.heads.question:PAGE",
                command="attncli.features.heads.command:command",
                synonyms="head bertviz head_view model_view survey analyze analyse inspect model induction",
                opens={
                    "--model": ".gguf /",
                },
            ),
        ),
        results={
            "heads": "attncli.records.surveys:HeadSurvey",
        },
        screens={
            "attncli.records.surveys:HeadSurvey": "attncli.features.heads.screens:SURVEY_SCREEN",
        },
        functions={
            "heads": "attncli.features.heads.door:heads",
            "survey": "attncli.features.heads.door:survey",
            "survey_texts": "attncli.features.heads.door:survey_texts",
        },
        extras=("models",),
        lessons=("attncli.features.heads:lessons/17-real-model.md",),
        docs="survey.md",
    ),
    "pairs": Feature(
        questions=(
            Question(
                name="relations",
                summary="Heads that look along syntactic relations",
                spec="attncli.features.pairs.settings:RelationsSpec",
                page="attncli.features.pairs.question:RELATIONS_PAGE",
                form_of="heads",
                asked_by="relations",
            ),
            Question(
                name="pairs",
                summary="Heads that look from one position of a pair to the other",
                spec="attncli.features.pairs.settings:PairsSpec",
                page="attncli.features.pairs.question:PAIRS_PAGE",
                form_of="heads",
                asked_by="pairs",
            ),
        ),
        results={
            "heads of relations": "attncli.features.pairs.relation_results:HeadRelations",
            "heads of pairs": "attncli.features.pairs.results:HeadsOnPairs",
        },
        screens={
            "attncli.features.pairs.relation_results:HeadRelations": "attncli.features.pairs.relation_screens:RELATIONS_SCREEN",
            "attncli.features.pairs.results:HeadsOnPairs": "attncli.features.pairs.screens:PAIRS_SCREEN",
        },
        functions={
            "relations": "attncli.features.pairs.door:relations",
            "pairs": "attncli.features.pairs.door:pairs",
            "pair_table": "attncli.features.pairs.door:pair_table",
        },
        needs=("heads",),
        extras=("models",),
        docs="pairs.md",
        papers={
            "heads of relations": "clark2019",
            "heads of pairs": "rao2021",
            "apc": "dunn2008",
        },
    ),
    "examples": Feature(
        questions=(
            Question(
                name="examples",
                summary="The texts with the largest statistic of one head",
                spec="attncli.features.examples.settings:ExamplesSpec",
                page="attncli.features.examples.question:PAGE",
                form_of="heads",
                asked_by="num_examples",
            ),
        ),
        results={
            "heads of examples": "attncli.features.examples.results:HeadExamples",
        },
        screens={
            "attncli.features.examples.results:HeadExamples": "attncli.features.examples.screens:EXAMPLES_SCREEN",
        },
        page={
            "attncli.features.examples.results:HeadExamples": "attncli.features.examples.page:EXAMPLES",
        },
        functions={
            "examples": "attncli.features.examples.door:examples",
        },
        needs=("heads",),
        extras=("models",),
        docs="survey.md",
    ),
    "words": Feature(
        questions=(
            Question(
                name="alignment",
                summary="Heads that time words",
                spec="attncli.features.words.settings:AlignmentSpec",
                page="attncli.features.words.question:ALIGNMENT_PAGE",
                form_of="heads",
                asked_by="find_heads",
            ),
            Question(
                name="words",
                summary="The time of each word in a sound",
                spec="attncli.features.words.settings:SpokenWordsSpec",
                page="attncli.features.words.question:WORDS_PAGE",
                form_of="heads",
                asked_by="sound words",
            ),
        ),
        results={
            "heads of words": "attncli.features.words.results:SpokenWords",
            "heads of alignment": "attncli.features.words.results:AligningHeads",
        },
        screens={
            "attncli.features.words.results:SpokenWords": "attncli.features.words.screens:WORDS_SCREEN",
            "attncli.features.words.results:AligningHeads": "attncli.features.words.screens:ALIGNING_SCREEN",
        },
        functions={
            "spoken_words": "attncli.features.words.door:spoken_words",
            "aligning_heads": "attncli.features.words.door:aligning_heads",
        },
        views={
            "srt": View(
                write="attncli.features.words.screens:write_srt",
                suffixes=(".srt",),
                for_other_programs=True,
            ),
            "vtt": View(
                write="attncli.features.words.screens:write_vtt",
                suffixes=(".vtt",),
                for_other_programs=True,
            ),
        },
        needs=("heads", "sound"),
        extras=("models",),
        docs="sound.md",
        papers={
            "heads of words": "yeh2025",
            "heads of alignment": "yeh2025",
        },
    ),
    "generate": Feature(
        questions=(
            Question(
                name="generate",
                summary="Attention while a model writes",
                group="Models",
                spec="attncli.features.generate.question:GenerateSpec",
                synonyms="chat complete completion write sample",
            ),
        ),
        results={
            "generate": "attncli.features.generate.results:WrittenText",
        },
        screens={
            "attncli.features.generate.results:WrittenText": "attncli.features.generate.screens:WRITER_SCREEN",
        },
        functions={
            "generate": "attncli.features.generate.door:generate",
        },
        extras=("models",),
        docs="generate.md",
        papers={
            "top_p": "holtzman2019",
        },
    ),
    "ablate": Feature(
        questions=(
            Question(
                name="ablate",
                summary="Effect of removing each head (swap: activation patching)",
                group="Models",
                spec="attncli.features.ablate.question:AblateSpec",
            ),
        ),
        results={
            "ablate": "attncli.features.ablate.results:HeadEffects",
        },
        screens={
            "attncli.features.ablate.results:HeadEffects": "attncli.features.ablate.screens:SCREEN",
        },
        functions={
            "ablate": "attncli.features.ablate.door:ablate",
        },
        extras=("models",),
        docs="ablate.md",
        papers={
            "approximate": "michel2019",
            "into": "wang2022 goldowskydill2023",
        },
    ),
    "cache": Feature(
        questions=(
            Question(
                name="cache",
                summary="Increase in loss with a smaller cache, by head and policy",
                group="Models",
                spec="attncli.features.cache.settings:CacheSpec",
                page="attncli.features.cache.question:PAGE",
                synonyms="kvcache kv_cache kv kvpress compress press evict",
            ),
            Question(
                name="policies",
                summary="Increase in loss if only some keys of a prompt are kept",
                spec="attncli.features.cache.settings:PoliciesSpec",
                page="attncli.features.cache.question:POLICIES_PAGE",
                form_of="cache",
                asked_by="policy",
            ),
            Question(
                name="few_bits",
                summary="Increase in loss if a prompt's cache is rounded to few bits",
                spec="attncli.features.cache.settings:BitsSpec",
                page="attncli.features.cache.question:POLICIES_PAGE",
                form_of="cache",
                asked_by="bits",
            ),
        ),
        results={
            "cache": "attncli.features.cache.results:LimitedHeads",
            "cache of policies": "attncli.features.cache.results:PolicyCosts",
        },
        screens={
            "attncli.features.cache.results:LimitedHeads": "attncli.features.cache.screens:LIMITED_SCREEN",
            "attncli.features.cache.results:PolicyCosts": "attncli.features.cache.screens:POLICIES_SCREEN",
        },
        page={
            "attncli.features.cache.results:LimitedHeads": "attncli.features.cache.page:FORGOTTEN",
        },
        functions={
            "cache": "attncli.features.cache.door:cache",
            "cache_policies": "attncli.features.cache.door:cache_policies",
        },
        extras=("models",),
        lessons=("attncli.features.cache:lessons/19-smaller-cache.md",),
        docs="cache.md",
        papers={
            "cache": "xiao2023",
            "policy=window": "beltagy2020",
            "policy=sinks": "xiao2023",
            "policy=h2o": "zhang2023",
            "policy=tova": "oren2024",
            "policy=snapkv": "li2024",
            "policy=pyramidkv": "cai2024",
            "policy=knorm": "devoto2024",
            "policy=expected": "devoto2025",
            "policy=heads": "xiao2024",
            "bits": "liu2024",
        },
    ),
    "why": Feature(
        questions=(
            Question(
                name="why",
                summary="Contribution of each head to a logit: direct logit attribution",
                group="Models",
                spec="attncli.features.why.question:WhySpec",
                synonyms="attribute attribution explain dla direct_logit_attribution logit_lens lens",
            ),
        ),
        results={
            "why": "attncli.features.why.results:LogitAttribution",
            "why of a score": "attncli.features.why.results:ScoreParts",
        },
        screens={
            "attncli.features.why.results:LogitAttribution": "attncli.features.why.screens:LOGIT_SCREEN",
            "attncli.features.why.results:ScoreParts": "attncli.features.why.screens:SCORE_SCREEN",
        },
        page={
            "attncli.features.why.results:LogitAttribution": "attncli.features.why.page:LOGIT",
            "attncli.features.why.results:ScoreParts": "attncli.features.why.page:SCORE",
        },
        functions={
            "why": "attncli.features.why.door:why",
            "score_parts": "attncli.features.why.door:score_parts",
        },
        extras=("models",),
        docs="ablate.md",
        papers={
            "why": "elhage2021",
            "why of a score": "elhage2021",
        },
    ),
    "source": Feature(
        questions=(
            Question(
                name="source",
                summary="Sources of an answer, by weight or by removal",
                group="Models",
                spec="attncli.features.source.settings:SourceSpec",
                page="attncli.features.source.question:PAGE",
            ),
            Question(
                name="retrieving_heads",
                summary="Heads that find the source of an answer",
                spec="attncli.features.source.settings:RetrievingHeadsSpec",
                page="attncli.features.source.question:HEADS_PAGE",
                form_of="source",
                asked_by="find_heads",
            ),
        ),
        results={
            "source": "attncli.features.source.results:AnswerSources",
            "source of heads": "attncli.features.source.results:RetrievingHeads",
        },
        screens={
            "attncli.features.source.results:AnswerSources": "attncli.features.source.screens:SOURCE_SCREEN",
            "attncli.features.source.results:RetrievingHeads": "attncli.features.source.screens:RETRIEVAL_SCREEN",
        },
        page={
            "attncli.features.source.results:AnswerSources": "attncli.features.source.page:ANSWER",
        },
        functions={
            "answer_sources": "attncli.features.source.door:answer_sources",
            "retrieving_heads": "attncli.features.source.door:retrieving_heads",
        },
        extras=("models",),
        docs="source.md",
        papers={
            "method=sampled": "cohenwang2024",
            "source of heads": "wu2024",
        },
    ),
    "explanations": Feature(
        questions=(
            Question(
                name="explained_pictures",
                summary="A picture's output explained in several ways",
                spec="attncli.features.explanations.settings:ExplainedPicturesSpec",
                page="attncli.features.explanations.question:PICTURES_PAGE",
                form_of="source",
                asked_by="compare image",
            ),
            Question(
                name="head_weights",
                summary="A weight for each head, learned from answers",
                spec="attncli.features.explanations.settings:HeadWeightsSpec",
                page="attncli.features.explanations.question:WEIGHTS_PAGE",
                form_of="source",
                asked_by="learn",
            ),
            Question(
                name="explanations",
                summary="An answer explained in several ways",
                spec="attncli.features.explanations.settings:ExplanationsSpec",
                page="attncli.features.explanations.question:PAGE",
                form_of="source",
                asked_by="compare",
            ),
        ),
        results={
            "source of explanations": "attncli.features.explanations.results:Explanations",
            "source of ways": "attncli.features.explanations.results:ComparedWays",
            "source of weights": "attncli.features.explanations.results:LearnedWeights",
        },
        screens={
            "attncli.features.explanations.results:Explanations": "attncli.features.explanations.screens:EXPLANATIONS_SCREEN",
            "attncli.features.explanations.results:ComparedWays": "attncli.features.explanations.screens:WAYS_SCREEN",
            "attncli.features.explanations.results:LearnedWeights": "attncli.features.explanations.screens:WEIGHTS_SCREEN",
        },
        page={
            "attncli.features.explanations.results:Explanations": "attncli.features.explanations.page:WAYS",
        },
        functions={
            "compare_explanations": "attncli.features.explanations.door:compare_explanations",
            "explanations": "attncli.features.explanations.door:explanations",
            "learned_head_weights": "attncli.features.explanations.door:learned_head_weights",
        },
        needs=("source",),
        extras=("models",),
        docs="explain.md",
        papers={
            "way=at2": "cohenwang2025",
            "way=rollout": "abnar2020",
            "way=value_norms": "kobayashi2020",
            "way=alti": "ferrando2022",
            "way=attention_gradient": "chefer2021",
            "way=attnlrp": "achtibat2024",
            "way=direct_logit": "elhage2021",
            "way=context_cite": "cohenwang2024",
            "source of explanations": "samek2017",
            "source of ways": "samek2017",
            "source of weights": "cohenwang2025",
        },
    ),
    "separate": Feature(
        questions=(
            Question(
                name="separate",
                summary="Heads that separate two groups of texts",
                group="Models",
                spec="attncli.features.separate.question:SeparateSpec",
                command="attncli.features.separate.command:command",
            ),
            Question(
                name="detected_texts",
                summary="Texts scored by a detector",
                spec="attncli.features.separate.question:DetectedTextsSpec",
                page="attncli.features.separate.question:DETECTED_PAGE",
                form_of="separate",
                asked_by="apply",
            ),
        ),
        results={
            "separate": "attncli.features.separate.results:SeparatedTexts",
            "separate of texts": "attncli.features.separate.results:AppliedDetector",
        },
        screens={
            "attncli.features.separate.results:SeparatedTexts": "attncli.features.separate.screens:SEPARATE_SCREEN",
            "attncli.features.separate.results:AppliedDetector": "attncli.features.separate.screens:APPLIED_SCREEN",
        },
        functions={
            "separate": "attncli.features.separate.door:separate",
            "apply_detector": "attncli.features.separate.door:apply_detector",
            "read_detector": "attncli.features.separate.door:read_detector",
        },
        extras=("models",),
        docs="separate.md",
        papers={
            "separate": "delong1988",
            "instruction_share": "hung2024",
            "lookback_ratio": "chuang2024",
        },
    ),
    "circuit": Feature(
        questions=(
            Question(
                name="circuit",
                summary="Which heads feed which: QK and OV circuits",
                group="Models",
                spec="attncli.features.circuit.question:CircuitSpec",
            ),
            Question(
                name="compositions",
                summary="Which heads can feed which, from the weights",
                spec="attncli.features.circuit.question:CompositionsSpec",
                page="attncli.features.circuit.question:WEIGHTS_PAGE",
                form_of="circuit",
                asked_by="weights",
            ),
        ),
        results={
            "circuit": "attncli.features.circuit.results:HeadEdges",
            "circuit of weights": "attncli.features.circuit.results:Compositions",
        },
        screens={
            "attncli.features.circuit.results:HeadEdges": "attncli.features.circuit.screens:CIRCUIT_SCREEN",
            "attncli.features.circuit.results:Compositions": "attncli.features.circuit.screens:COMPOSITIONS_SCREEN",
        },
        page={
            "attncli.features.circuit.results:HeadEdges": "attncli.features.circuit.page:GRAPH",
            "attncli.features.circuit.results:Compositions": "attncli.features.circuit.page:GRAPH",
        },
        functions={
            "compositions": "attncli.features.circuit.door:compositions",
            "head_edges": "attncli.features.circuit.door:head_edges",
        },
        views={
            "dot": View(
                write="attncli.features.circuit.screens:write_dot",
                suffixes=(".dot", ".gv"),
                draws=True,
                has_title=True,
                for_other_programs=True,
            ),
        },
        extras=("models",),
        lessons=("attncli.features.circuit:lessons/18-finding-a-key.md",),
        docs="circuit.md",
        papers={
            "circuit": "elhage2021",
            "logit": "sundararajan2017",
            "circuit of weights": "elhage2021",
        },
    ),
    "pitfalls": Feature(
        questions=(
            Question(
                name="pitfalls",
                summary="Classic mistakes, each next to the right way",
                group="Learn",
                spec="attncli.features.pitfalls.question:PitfallsSpec",
                synonyms="mistakes bugs",
            ),
        ),
        results={
            "pitfalls": "attncli.features.pitfalls.results:Mistakes",
            "pitfalls of one": "attncli.features.pitfalls.results:MistakeComparison",
        },
        screens={
            "attncli.features.pitfalls.results:Mistakes": "attncli.features.pitfalls.screens:MISTAKES_SCREEN",
            "attncli.features.pitfalls.results:MistakeComparison": "attncli.features.pitfalls.screens:MISTAKE_SCREEN",
        },
    ),
    "watch": Feature(
        questions=(
            Question(
                name="watch",
                summary="Heads over the steps of a training run",
                group="Models",
                command="attncli.features.watch.question:command",
            ),
        ),
        results={
            "watch": "attncli.features.watch.results:HeadsInTraining",
            "watch of a head": "attncli.features.watch.results:HeadInTraining",
        },
        screens={
            "attncli.features.watch.results:HeadsInTraining": "attncli.features.watch.screens:WATCH_SCREEN",
            "attncli.features.watch.results:HeadInTraining": "attncli.features.watch.screens:WATCH_HEAD_SCREEN",
        },
        functions={
            "Watch": "attncli.features.watch.door:Watch",
        },
        needs=("record",),
        extras=("models",),
        lessons=("attncli.features.watch:lessons/21-learning-to-copy.md",),
        docs="watch.md",
        papers={
            "watch": "olsson2022 zhai2023",
            "watch of a head": "zhai2023",
        },
    ),
    "record": Feature(
        questions=(
            Question(
                name="record",
                summary="Heads of any PyTorch program, while it runs",
                group="Models",
                command="attncli.features.record.question:command",
            ),
        ),
        results={
            "record": "attncli.features.record.results:RecordedHeads",
        },
        screens={
            "attncli.features.record.results:RecordedHeads": "attncli.features.record.screens:RECORDED_SCREEN",
        },
        functions={
            "record": "attncli.features.record.door:record",
            "layers_of": "attncli.features.record.door:layers_of",
            "Recording": "attncli.features.record.door:Recording",
        },
        lessons=("attncli.features.record:lessons/22-own-model.md",),
        docs="record.md",
    ),
    "show": Feature(
        questions=(
            Question(
                name="show",
                summary="A saved report, or weights from another tool, in any view",
                group="See",
                command="attncli.features.show.question:command",
                synonyms="view cat display load print",
                opens={
                    "": ".json .jsonl .ndjson .npz .npy .safetensors",
                },
            ),
        ),
        results={
            "show": "attncli.records.attention:OutsideWeights",
        },
        screens={
            "attncli.records.attention:OutsideWeights": "attncli.features.show.screens:OUTSIDE_SCREEN",
        },
        functions={
            "read_cache": "attncli.features.show.door:read_cache",
        },
        lessons=("attncli.features.show:lessons/20-pictures.md",),
        docs="show.md",
    ),
    "diff": Feature(
        questions=(
            Question(
                name="diff",
                summary="Two experiments or saved reports side by side",
                group="See",
                command="attncli.features.diff.question:command",
                synonyms="compare",
            ),
        ),
        results={
            "diff of texts": "attncli.features.diff.results:TextDifferences",
            "diff": "attncli.features.diff.results:ReportDifferences",
        },
        screens={
            "attncli.features.diff.results:ReportDifferences": "attncli.features.diff.screens:COMPARISON_SCREEN",
            "attncli.features.diff.results:TextDifferences": "attncli.features.diff.screens:TWO_TEXTS_SCREEN",
        },
        functions={
            "text_differences": "attncli.features.diff.door:text_differences",
            "changed_heads": "attncli.features.diff.differences:changed_heads",
            "head_differences": "attncli.features.diff.differences:head_differences",
        },
        docs="show.md",
    ),
    "browse": Feature(
        questions=(
            Question(
                name="browse",
                summary="Look through heads and tokens in the terminal",
                group="Models",
                command="attncli.features.browse.question:command",
                synonyms="tui ui interactive explore gui",
            ),
        ),
        needs=("heads", "ablate", "why"),
        docs="browse.md",
    ),
    "serve": Feature(
        questions=(
            Question(
                name="serve",
                summary="A web page that answers questions about a model",
                group="Models",
                command="attncli.features.serve.question:command",
            ),
        ),
        needs=("generate", "why"),
        docs="serve.md",
    ),
    "batch": Feature(
        questions=(
            Question(
                name="batch",
                summary="Run the experiments of config files",
                group="Many runs",
                command="attncli.features.batch.question:command",
                synonyms="run sweep grid experiments",
                opens={
                    "": ".yaml .yml",
                },
            ),
        ),
        docs="batch.md",
    ),
    "results": Feature(
        questions=(
            Question(
                name="results",
                summary="Statistics of stored runs by group, or all their values",
                group="Many runs",
                command="attncli.features.results.question:command",
                synonyms="summary stats query report",
                opens={
                    "": ".db .sqlite .sqlite3",
                },
            ),
        ),
        results={
            "results": "attncli.features.results.results:StoreSummary",
        },
        screens={
            "attncli.features.results.results:StoreSummary": "attncli.features.results.screens:SUMMARY_SCREEN",
        },
        docs="batch.md",
    ),
    "linear": Feature(
        layer_sources={
            "linear": LayerSource(
                capture="attncli.features.linear.kernels:capture",
                mixers={
                    "Mamba": "",
                    "gated delta net": "",
                    "Kimi delta attention": "",
                    "lightning attention": "",
                },
            ),
        },
        docs="models.md",
        papers={
            "linear": "ali2024 zimerman2024",
            "mixer=Mamba": "gu2023",
            "mixer=gated delta net": "yang2024",
            "mixer=Kimi delta attention": "kimi2025",
            "mixer=lightning attention": "qin2024",
        },
    ),
    "pictures": Feature(
        functions={
            "read_picture": "attncli.features.pictures.reading:read_picture",
        },
        readings={
            "picture": ReadingKind(
                setting="image",
                spec="attncli.features.pictures.settings:ImageSpec",
                opener="attncli.features.pictures.opener:PICTURES",
                suffixes=(".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif"),
                inputs=("pixel_values", "flattened_patches"),
                reader="one that reads pictures",
                on_grid=True,
            ),
        },
        extras=("models",),
        docs="images.md",
        papers={
            "image": "dosovitskiy2020 caron2021",
        },
    ),
    "sound": Feature(
        functions={
            "read_sound": "attncli.features.sound.reading:read_sound",
        },
        readings={
            "sound": ReadingKind(
                setting="sound",
                spec="attncli.features.sound.settings:SoundSpec",
                opener="attncli.features.sound.opener:SOUNDS",
                suffixes=(".wav", ".flac", ".ogg", ".oga", ".opus", ".aiff", ".aif", ".mp3"),
                inputs=("input_features", "input_values"),
                reader="one that hears, such as Whisper",
                in_time=True,
                is_transcribed=True,
            ),
        },
        extras=("models",),
        docs="sound.md",
    ),
}


@computed_once
def installed_features() -> Mapping[str, Feature]:
    """Built-in features, then those of other packages; see `features_in_use`."""
    return features_in_use(FEATURES)


@computed_once
def readings() -> Mapping[str, ReadingKind]:
    """The kinds of files that models read besides texts, by name; the first card with a name counts."""
    kinds: dict[str, ReadingKind] = {}
    for feature in installed_features().values():
        kinds |= {what: kind for what, kind in feature.readings.items() if what not in kinds}
    return kinds
