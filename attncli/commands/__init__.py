"""One page for each subcommand of `attn`."""
