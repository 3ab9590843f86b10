"""Typed errors. Each names what is wrong and the next step; the command line prints both and exits with status 2."""

from analysis.formats.failure import FAILURES


class CampaignError(Exception):
    """Base of every error a user can meet. `hint` is the next step; it is printed on its own line."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(CampaignError):
    """campaign.toml or an option cannot be used as written."""


class StoreError(CampaignError):
    """The results folder cannot be read or written, or is not this campaign's."""


class PreflightError(CampaignError):
    """The machine cannot run the campaign as it is (GPU, engine, model, port, disk)."""


class EngineFailed(CampaignError):
    """The engine or the bench client ended or hung during a run. `failure_class` is the one of run.json, a name of
    failures.toml; its hint is used where none is given."""

    def __init__(self, message: str, failure_class: str, hint: str = "") -> None:
        super().__init__(message, hint or FAILURES[failure_class].hint)
        self.failure_class = failure_class
