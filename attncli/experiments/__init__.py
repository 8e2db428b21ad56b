"""One file per experiment: what was asked -> what was found."""
