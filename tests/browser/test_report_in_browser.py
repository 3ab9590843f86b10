"""The rendered report as a browser shows it: accessible in light and dark, no script errors, nothing fetched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis.load import load
from report.render import render
from tests import make_store

pytestmark = pytest.mark.browser
RESULTS = Path(__file__).parent.parent.parent / "results"
FAULTY = "<html lang=en><title>t</title><main><h1>h</h1><p style='color:#bbb;background:#fff'>pale</p></main>"


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shipped")
    (data,) = RESULTS.glob("*/")
    load(data, folder / "d.duckdb")
    render(folder / "d.duckdb", folder)
    return folder / "report.html"


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated")
    load(make_store.synthetic_store(folder / "store", repetitions=5, simulated=True), folder / "d.duckdb")
    render(folder / "d.duckdb", folder)
    return folder / "report.SIMULATED.html"


@pytest.fixture(params=["shipped", "simulated"])
def report(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["light", "dark"])
def page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    context = browser.new_context(color_scheme=request.param, viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()


def violations(page: Any) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe

    return [
        f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}"
        for rule in Axe().run(page).response["violations"]
        for node in rule["nodes"]
    ]


def test_axe_core_finds_nothing_and_nothing_is_fetched(page: Any, report: Path) -> None:
    asked: list[str] = []
    problems: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.goto(report.as_uri())
    assert violations(page) == []
    assert asked == [report.as_uri()]
    assert problems == []


def test_nothing_but_tables_is_wider_than_a_telephone(browser: Any, report: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(report.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


def test_prints(browser: Any, report: Path) -> None:
    page = browser.new_page()
    page.goto(report.as_uri())
    assert page.pdf().startswith(b"%PDF")
    page.close()


def test_a_page_with_a_fault_is_told(page: Any) -> None:
    page.set_content(FAULTY)
    assert [found.split(":")[0] for found in violations(page)] == ["color-contrast"]
