"""A report as an SVG picture, its texts as text."""

from attncli.views.pictures import writer

write = writer("svg", {"Date": None, "Creator": None})
