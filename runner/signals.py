"""What Ctrl-C and SIGTERM do where no campaign runs, what they set where one does. Imports nothing that takes time."""

import os
import signal

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Set by a signal's handler, so without a lock: the handler could wait for ever for whom it interrupted. Who does
    anything for long looks at it every few hundredths of a second."""

    asked = False

    def set(self) -> None:
        self.asked = True

    def is_set(self) -> bool:
        return self.asked


def end_at_once() -> None:
    """They end the process with 128 + signal, for where an exception would be lost: in imports and at its end."""
    for number in STOP_SIGNALS:
        signal.signal(number, lambda signum, _: os._exit(128 + signum))


def interruptible() -> None:
    """Imports are done: Ctrl-C raises KeyboardInterrupt, so that what was begun is cleaned up."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
