"""How the numbers of a report are called, so that an experiment can name them before it runs."""

SUMMARIES = ("mean", "min", "max")
"""What a run keeps of a statistic of rows, for each head."""
MOMENTS = ("mean", "variance", "min", "max")


def in_group(group: str, *names: str) -> tuple[str, ...]:
    """`group.name` for each name; N stands for a place in a list, as in `sharpness.N.entropy`."""
    return tuple(f"{group}.{name}" for name in names)
