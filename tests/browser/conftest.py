"""Chromium for the report: the one of CAMPAIGN_CHROMIUM or of this machine.

Without one the tests are skipped, or fail if CAMPAIGN_EXPECT_BROWSER=1.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    names = [os.environ.get("CAMPAIGN_CHROMIUM") or "chromium", "chromium-browser", "google-chrome"]
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        text = "NO CHROMIUM, THE REPORT IS TESTED IN NO BROWSER: install it or name one in CAMPAIGN_CHROMIUM"
        if os.environ.get("CAMPAIGN_EXPECT_BROWSER") == "1":
            pytest.fail(text)
        pytest.skip(text)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()
