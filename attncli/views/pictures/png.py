"""A report as a PNG picture."""

from attncli.views.pictures import writer

write = writer("png", {"Software": None})
