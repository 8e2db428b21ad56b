"""Pictures as models read them: `--image`, and `attncli.read_picture`."""
