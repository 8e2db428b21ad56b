"""From a folder to a model, from a model to the attention of each of its layers."""
