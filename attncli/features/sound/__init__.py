"""Sound as models hear it: `--sound`, and `attncli.read_sound`."""
