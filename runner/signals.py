"""What Ctrl-C and SIGTERM do where no campaign runs. Imports nothing that takes time."""

import os
import signal

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def end_at_once() -> None:
    """They end the process with 128 + signal, for where an exception would be lost: in imports and at its end."""
    for number in STOP_SIGNALS:
        signal.signal(number, lambda signum, _: os._exit(128 + signum))


def interruptible() -> None:
    """Imports are done: Ctrl-C raises KeyboardInterrupt, so that what was begun is cleaned up."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
