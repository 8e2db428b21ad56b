"""The card of the feature."""

from attncli.feature import Feature, LayerSource, Question, ReadingKind, View

FEATURE = Feature(
    questions=(
        Question(
            "spread",
            "Distance between the keys of a head",
            "Models",
            spec="question:SpreadSpec",
            synonyms="reach span",
        ),
        Question(
            "spread of heads",
            "attn spread as a form of attn heads",
            spec="question:SpreadOfHeadsSpec",
            page="question:PAGE",
            form_of="heads",
            asked_by="spread",
        ),
        Question(
            "similarity",
            "Similarity of the vectors of a sentence",
            "Learn",
            spec="similarity:SimilaritySpec",
        ),
    ),
    results={"spread": "results:HeadSpreads", "heads of spread": "results:HeadSpreads"},
    screens={"results:HeadSpreads": "screens:SCREEN"},
    page={"results:HeadSpreads": "page:BLOCK"},
    functions={"spread": "door:spread"},
    statistics={"nearby_mass": "nearby_mass:nearby_mass"},
    views={"tsv": View("tsv:write", (".tsv",))},
    engines={"exact": "exact:EXACT"},
    layer_sources={"convolution": LayerSource("convolution:capture", {"short convolution": ""})},
    readings={
        "board": ReadingKind(
            "board",
            spec="board_settings:BoardSpec",
            opener="board:BOARDS",
            suffixes=(".board",),
            reader="one that reads text",
            on_grid=True,
        )
    },
    needs=("heads",),
    extras=("models",),
    lessons=("lessons/01-spread.md",),
    docs="spread.md",
    papers={"spread": "vig2019", "nearby_mass": "sperber2018"},
    bibliography="papers.bib",
)
