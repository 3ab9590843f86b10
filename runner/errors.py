"""Typed errors. Each names what is wrong and the next step; the command line prints both and exits with `exit_code`."""

from __future__ import annotations


class CampaignError(Exception):
    """Base of every error a user can meet. `hint` is the next step; it is printed on its own line."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(CampaignError):
    """campaign.toml cannot be used as written."""

    exit_code = 2


class ConfigChanged(CampaignError):
    """The results folder belongs to another configuration."""

    exit_code = 2


class StoreError(CampaignError):
    """The results folder cannot be read or written."""

    exit_code = 2


class StoreLocked(StoreError):
    """Another campaign process works on the same results folder."""


class PreflightError(CampaignError):
    """The machine cannot run the campaign as it is (GPU, engine, model, port, disk)."""

    exit_code = 2


class EngineFailed(CampaignError):
    """The engine or the bench client ended or hung during a run. `failure_class` is one of the names in gates."""

    def __init__(self, message: str, failure_class: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.failure_class = failure_class
