"""`attn`, and `python -m attncli`: while the command line is imported, a signal ends it quietly."""

from attncli.system.signals import end_quietly


def main() -> None:
    """Import the command line and run it; it decides anew what signals do."""
    end_quietly()
    from attncli.cli import main as run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
