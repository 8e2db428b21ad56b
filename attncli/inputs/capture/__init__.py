"""A pretrained model's attention, captured while it runs: through the interface, or as eager weights."""
