"""The built book, served on loopback, and a browser that can reach nothing else."""

import functools
import http.server
import threading
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, Page, Route, sync_playwright

from tests.book.building import build_if_stale

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *args: object) -> None:
        pass


@dataclass
class Reader:
    """One open page and everything that went wrong on it."""

    page: Page
    base: str
    trouble: list[str] = field(default_factory=list)

    def open(self, name: str) -> Page:
        """Go to a page and wait until its formulas and widgets are drawn."""
        self.page.goto(self.base + name, wait_until="load")
        self.page.wait_for_function(DRAWN, timeout=20_000)
        return self.page


# Formulas are typeset, and every widget that the page describes has been drawn.
DRAWN = """() => (!window.MathJax?.startup?.promise || document.querySelectorAll('.math').length ===
    document.querySelectorAll('.math:has(mjx-container)').length) &&
  [...document.querySelectorAll('script[type="application/vnd.jupyter.widget-view+json"]')]
    .every((script) => script.parentElement.querySelector('.jupyter-widgets'))"""


@pytest.fixture(scope="session")
def html():
    """The folder of the built book."""
    return build_if_stale()


@pytest.fixture(scope="session")
def base(html):
    """The address at which the built book is served."""
    handler = functools.partial(QuietHandler, directory=html)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium; closed after the module, since its event loop would be in others' way."""
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def reader(browser: Browser, base: str):
    """A fresh page; requests to anything but the book are stopped and noted."""
    context = browser.new_context(viewport={"width": 1440, "height": 1000}, permissions=[])
    reader = Reader(page=context.new_page(), base=base)

    def guard(route: Route) -> None:
        if route.request.url.startswith((base, "data:", "blob:")):
            route.continue_()
        else:
            reader.trouble.append(f"asked for {route.request.url}")
            route.abort()

    reader.page.route("**/*", guard)
    reader.page.on("response", lambda r: r.ok or r.status in (301, 304) or _note(reader, r))
    reader.page.on("console", lambda m: m.type == "error" and _note(reader, m.text))
    reader.page.on("pageerror", lambda error: _note(reader, error))
    yield reader
    context.close()


def _note(reader: Reader, what: object) -> None:
    reader.trouble.append(f"{getattr(what, 'status', '')} {getattr(what, 'url', what)}".strip())
