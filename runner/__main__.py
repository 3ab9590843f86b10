"""The `campaign` command, also as `python -m runner`."""

import atexit
import signal

from runner.signals import STOP_SIGNALS, end_at_once


def main() -> None:
    for number in STOP_SIGNALS:  # while the interpreter takes itself apart, the exit status stands
        atexit.register(signal.signal, number, signal.SIG_IGN)
    end_at_once()  # before what takes time to import
    from runner.cli import main as command

    try:
        command(prog_name="campaign")
    finally:
        end_at_once()


if __name__ == "__main__":
    main()
