"""The attention of a running program: which calls make it, of which modules, and the layer of each."""
