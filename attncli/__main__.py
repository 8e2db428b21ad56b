"""`attn`, and `python -m attncli`: while the command line is imported, a signal ends it quietly."""

import os
import signal


def _end(signal_number: int, frame: object) -> None:
    """Nothing has begun yet that would have to be cleaned up."""
    os._exit(128 + signal_number)


def main() -> None:
    """Import the command line and run it; it decides anew what signals do."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as for what a shell runs in the background
            signal.signal(number, _end)
    from attncli.cli import main as run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
