"""Entry point of `attn` and `python -m attncli`; a signal during the imports ends the process quietly."""

from attncli.system.signals import end_quietly


def main() -> None:
    """Import the command line and run it; cli.py then installs its own signal handlers."""
    end_quietly()
    from attncli.cli import main as run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
