"""The card of `attn circuit`."""

from attncli.feature import Feature, Question, View

FEATURE = Feature(
    questions=(
        Question(
            "circuit", "Which heads feed which: QK and OV circuits", "Models", spec="question:CircuitSpec"
        ),
        Question(
            "compositions",
            "Which heads can feed which, from the weights",
            spec="question:CompositionsSpec",
            page="question:WEIGHTS_PAGE",
            form_of="circuit",
            asked_by="weights",
        ),
    ),
    results={
        "circuit": "results:HeadEdges",
        "circuit of weights": "results:Compositions",
    },
    screens={
        "results:HeadEdges": "screens:CIRCUIT_SCREEN",
        "results:Compositions": "screens:COMPOSITIONS_SCREEN",
    },
    page={"results:HeadEdges": "page:GRAPH", "results:Compositions": "page:GRAPH"},
    functions={"compositions": "door:compositions", "head_edges": "door:head_edges"},
    views={
        "dot": View(
            "screens:write_dot",
            (".dot", ".gv"),
            draws=True,
            has_title=True,
            for_other_programs=True,
        )
    },
    extras=("models",),
    lessons=("lessons/18-finding-a-key.md",),
    docs="circuit.md",
    papers={
        "circuit": "elhage2021",
        "logit": "sundararajan2017",
        "circuit of weights": "elhage2021",
    },
)
