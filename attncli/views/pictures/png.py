"""A report as a PNG picture."""

from attncli.views.pictures.save import writer

write = writer("png", {"Software": None})
