"""The card of `attn heads`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "heads",
            "Attention patterns and statistics of each head of a model",
            "Models",
            spec="attncli.settings.heads:HeadsSpec",
            page="question:PAGE",
            command="command:command",
            synonyms="head bertviz head_view model_view survey analyze analyse inspect model induction",
            opens={"--model": ".gguf /"},
        ),
    ),
    results={
        "heads": "attncli.records.surveys:HeadSurvey",
    },
    screens={
        "attncli.records.surveys:HeadSurvey": "screens:SURVEY_SCREEN",
    },
    functions={"heads": "door:heads", "survey": "door:survey", "survey_texts": "door:survey_texts"},
    extras=("models",),
    lessons=("lessons/17-real-model.md",),
    docs="survey.md",
)
