"""The error of load and report."""

from __future__ import annotations


class LoadError(ValueError):
    """Results or a database that cannot be used. `hint` is the next step; the command line prints both."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.message = message
        self.hint = hint
