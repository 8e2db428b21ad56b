"""Running planned experiments; a single command is a batch of one."""
