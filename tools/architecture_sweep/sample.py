"""About forty architectures for `make test`, at least one for each class of behaviour of the sweep."""

SAMPLE = {
    "albert": "one module for all layers",
}
