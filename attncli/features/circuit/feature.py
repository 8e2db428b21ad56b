"""The card of `attn circuit`."""

from attncli.feature import Feature, Question, View

FEATURE = Feature(
    questions=(
        Question(
            "circuit", "Which heads feed which: QK and OV circuits", "Models", spec="question:CircuitSpec"
        ),
    ),
    results={
        "circuit": "attncli.records.circuit:HeadEdges",
        "circuit of weights": "attncli.records.circuit:Compositions",
    },
    screens={
        "attncli.records.circuit:HeadEdges": "attncli.views.graphs:CIRCUIT_SCREEN",
        "attncli.records.circuit:Compositions": "attncli.views.graphs:COMPOSITIONS_SCREEN",
    },
    functions={"compositions": "door:compositions", "head_edges": "door:head_edges"},
    views={
        "dot": View(
            "attncli.views.graphs:write_dot",
            (".dot", ".gv"),
            draws=True,
            has_title=True,
            for_other_programs=True,
        )
    },
    extras=("models",),
    docs="circuit.md",
)
