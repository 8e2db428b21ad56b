"""The first screen of weights from another tool."""

from attncli.records.attention import OutsideWeights
from attncli.views.findings import weights_finding
from attncli.views.first_screen import FirstScreen, Notes
from attncli.views.screens import FirstWeights, Opening, lines_for_notes

OUTSIDE_SCREEN = FirstScreen(
    OutsideWeights,
    (Opening(), FirstWeights(), Notes(usual=lines_for_notes)),
    finding=weights_finding,
)
