"""A browser that tests drive: Debian's Chromium by Playwright, and axe, which knows what keeps people out of a page."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

AXE = Path(__file__).parents[1] / "build" / "node" / "node_modules" / "axe-core" / "axe.min.js"
NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def browser() -> Iterator:
    """A browser, or a skipped test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing: run `make check`")
    path = os.environ.get("FUSEBERT_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("there is no Chromium: run `make browser` as root, or set FUSEBERT_BROWSER")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@contextmanager
def page_of(started, address, width=1280, height=800, scheme="light", **options) -> Iterator:
    """A page that says nothing on its console and fails nowhere."""
    context = started.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **options)
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.set_default_timeout(20_000)
    page.goto(address)
    page.locator("#status").wait_for(state="hidden")
    yield page
    assert said == []
    context.close()


def violations(page) -> list[str]:
    """What axe finds on a page as it is now."""
    if not AXE.is_file():
        pytest.skip("axe-core is missing: run `make build/node/.installed`")
    page.evaluate(AXE.read_text())  # into the page's world without a script element, which its policy forbids
    found = page.evaluate("async () => (await axe.run()).violations")
    return [f"{one['id']}: {node['html'][:200]} {node['failureSummary']}" for one in found for node in one["nodes"]]
