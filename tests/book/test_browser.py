"""The built book in a real browser, with no network but loopback.

Promised for every page: nothing outside is asked for, the console is clean, formulas are typeset,
pictures have alt text, nothing scrolls sideways on a phone, every slider and choice changes what is
drawn. Promised for the site: dark mode, copy buttons, downloads, and a search in two languages.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Locator, Page

from tests.book.building import ROOT

pytestmark = pytest.mark.browser


def pages() -> list[str]:
    """Return the addresses of all pages, from the table of contents."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    chapters = [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    return [f"{name}.html" for name in [toc["root"], *chapters]]


RAW_MATH = r"""() => [...document.querySelectorAll('article.bd-article *')]
  .flatMap((e) => [...e.childNodes]).filter((n) => n.nodeType === 3)
  .filter((n) => !n.parentElement.closest('pre, code, script, style, mjx-container'))
  .map((n) => n.data).filter((text) => /\\[()\[\]]|\$[^$]+\$|\\frac|\\alpha/.test(text))"""
NO_ALT = """() => [...document.querySelectorAll('img, svg[role=img]')]
  .filter((e) => !e.matches('[aria-hidden], [aria-labelledby]'))
  .filter((e) => !(e.getAttribute('alt') || e.getAttribute('aria-label') || '').trim())
  .map((e) => e.outerHTML.slice(0, 200))"""
TOO_WIDE = """() => document.documentElement.scrollWidth <= innerWidth ? [] :
  [...document.querySelectorAll('body *')]
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 1)
  .map((e) => e.tagName + '.' + e.className).slice(0, 8)"""


COPY_BUTTONS = """() => document.querySelectorAll('div.highlight pre').length ===
  document.querySelectorAll('div.highlight button.copybtn').length"""


@pytest.mark.parametrize("name", ["index.html", *pages()])
def test_page_is_complete_and_fits(reader, name):
    page = reader.open(name)
    page.wait_for_function(COPY_BUTTONS)
    assert page.evaluate(RAW_MATH) == []
    assert page.evaluate(NO_ALT) == []
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate(TOO_WIDE) == [], f"{width} pixels"
    assert reader.trouble == []


# What a reader sees beside the controls: every picture with its line of text.
DRAWING = """() => [...document.querySelectorAll('.widget-html-content')]
  .filter((pane) => pane.getClientRects().length > 0).map((pane) => pane.innerHTML).join()"""
CHANGED = f"(before) => ({DRAWING})() !== before"


def pages_that_move(html: Path) -> list[str]:
    """Return the pages with widgets on them."""
    return [name for name in pages() if "jupyter.widget-view+json" in (html / name).read_text()]


def test_every_control_changes_its_picture(reader, html):
    for name in pages_that_move(html):
        page = reader.open(name)
        for kind, move in MOVES.items():
            for control in page.locator(kind).all():
                before = page.evaluate(DRAWING)
                move(page, control)
                page.wait_for_function(CHANGED, arg=before, timeout=5000)
    assert reader.trouble == []


MOVES: dict[str, Callable[[Page, Locator], object]] = {
    ".widget-hslider .noUi-handle": lambda page, slider: slider.press("ArrowRight"),
    ".widget-toggle-buttons": lambda page, group: group.locator(
        "button:not(.mod-active)"
    ).first.click(),
    ".widget-dropdown select": lambda page, choice: choice.select_option(
        index=choice.evaluate("(select) => (select.selectedIndex + 1) % select.options.length")
    ),
}


def test_every_step_of_a_slider_is_another_picture(reader, html):
    for name in pages_that_move(html):
        page = reader.open(name)
        for slider in page.locator(".widget-hslider .noUi-handle").all():
            seen = {page.evaluate(DRAWING)}
            steps = int(float(slider.get_attribute("aria-valuemax")))
            for _ in range(steps):
                before = page.evaluate(DRAWING)
                slider.press("ArrowRight")
                page.wait_for_function(CHANGED, arg=before, timeout=5000)
                seen.add(page.evaluate(DRAWING))
            assert len(seen) == steps + 1


def test_every_chapter_has_a_figure_that_moves(html):
    chapters = [name for name in pages() if "/part" in name]
    assert set(chapters) <= set(pages_that_move(html))


def test_dark_mode_switch(reader):
    page = reader.open(pages()[0])
    colour = "() => getComputedStyle(document.body).backgroundColor"
    seen = {page.evaluate(colour)}
    for _ in range(2):
        page.locator(".theme-switch-button:visible").first.click()
        seen.add(page.evaluate(colour))
    assert len(seen) > 1
    assert page.evaluate("() => document.documentElement.dataset.theme") in ("dark", "light")
    assert reader.trouble == []


def test_page_sources_can_be_downloaded(reader, html):
    page = reader.open(pages()[0])
    links = page.locator(".dropdown-download-buttons a").evaluate_all(
        "(all) => all.map((a) => a.href)"
    )
    sources = [link for link in links if link.startswith(reader.base)]
    assert sources, "no button gives the page's source"
    for link in sources:
        assert page.request.get(link).ok, link
    assert not [link for link in links if link.startswith("http") and link not in sources]


def test_a_lab_is_downloaded_by_a_click(reader):
    page = reader.open("book/labs.html")
    with page.expect_download() as started:
        page.locator("article a.download").first.click()
    given = started.value
    lab = ROOT / "labs" / given.suggested_filename
    assert Path(given.path()).read_bytes() == lab.read_bytes()


def test_without_a_server_the_click_shows_the_lab(browser, html):
    """Chromium opens what it will not download from a folder; the reader saves that page."""
    page = browser.new_page()
    page.goto(f"{html.as_uri()}/book/labs.html")
    page.locator("article a.download").first.click()
    page.wait_for_url("**/*.ipynb")
    lab = ROOT / "labs" / page.url.rsplit("/", 1)[1]
    assert json.loads(page.inner_text("pre")) == json.loads(lab.read_text())
    page.close()


def test_wrong_solutions_unfold(reader):
    page = reader.open("book/wrong_solutions.html")
    message = page.locator(".wrong-solutions pre").first
    assert not message.is_visible()
    page.locator(".wrong-solutions > .admonition-title").first.click()
    message.wait_for(state="visible")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate(TOO_WIDE) == []
    assert message.evaluate("(e) => e.scrollWidth <= e.clientWidth"), "the message wraps"


TERMS = [
    ("deadlocks", "Setup and troubleshooting"),
    ("ledger", "How to use this book"),
    *[
        (term, "Glossary")
        for term in ("全归约", "张量并行", "梯度聚合", "键值缓存", "训练时量化", "内存墙")
    ],
]


@pytest.mark.parametrize(("query", "title"), TERMS)
def test_search_finds(reader, query, title):
    page = reader.page
    page.goto(f"{reader.base}search.html?q={query}")
    page.wait_for_selector("#search-results ul.search li", timeout=10_000)
    page.wait_for_function(
        "(title) => document.querySelector('#search-results').innerText.includes(title)", arg=title
    )
    assert reader.trouble == []


def test_search_does_not_find_what_is_not_there(reader):
    page = reader.page
    page.goto(f"{reader.base}search.html?q=量张")
    page.wait_for_selector("#search-results p.search-summary:not(:empty)")
    page.wait_for_function(
        "() => /did not match/.test(document.querySelector('#search-results').innerText)"
    )
