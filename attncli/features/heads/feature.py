"""The card of `attn heads`."""

from attncli.feature import Feature, Question, View

FEATURE = Feature(
    questions=(
        Question(
            "heads",
            "What each head of a pretrained model does",
            "Models",
            spec="attncli.settings.heads:HeadsSpec",
            page="question:PAGE",
            command="command:command",
            synonyms="head bertviz head_view model_view survey analyze analyse inspect model induction",
        ),
    ),
    results={
        "heads": "attncli.records.surveys:HeadSurvey",
        "heads of words": "attncli.records.spoken_words:SpokenWords",
        "heads of alignment": "attncli.records.spoken_words:AligningHeads",
    },
    screens={
        "attncli.records.surveys:HeadSurvey": "attncli.views.head_screens:SURVEY_SCREEN",
        "attncli.records.spoken_words:SpokenWords": "attncli.views.word_screens:WORDS_SCREEN",
        "attncli.records.spoken_words:AligningHeads": "attncli.views.word_screens:ALIGNING_SCREEN",
    },
    views={
        "srt": View("attncli.views.word_screens:write_srt", (".srt",), for_other_programs=True),
        "vtt": View("attncli.views.word_screens:write_vtt", (".vtt",), for_other_programs=True),
    },
    extras=("models",),
    docs="survey.md",
)
