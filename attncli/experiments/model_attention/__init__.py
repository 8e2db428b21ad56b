"""self, multihead and cross with a pretrained model: the same report, from one layer of it."""
