"""The page of wrong solutions shows the record: each row once, folded, with its check and message.

Oracle: the record that the graders wrote; a tiny book for what is followed.
"""

import json

from bs4 import BeautifulSoup

from tests.book.building import ROOT, build_tiny

RECORD = ROOT / "book" / "results" / "wrong_solutions.json"


def rows_of(page: BeautifulSoup) -> list[tuple[str, ...]]:
    """Exercise, name, fault, check and message of each wrong solution on a page, in its order."""
    rows = []
    for box in page.select("div.wrong-solutions.dropdown"):
        exercise = box.select_one(".admonition-title code").get_text()
        for name, told in zip(box.select("dt"), box.select("dd"), strict=True):
            check, _, message = told.select_one("pre").get_text().rstrip("\n").partition("\n")
            rows.append(
                (exercise, name.get_text(), told.select_one("p").get_text(), check, message)
            )
    return rows


def plain(text: str) -> str:
    """A fault as the page sets it: its quotes are curled, its backquotes are gone."""
    return text.replace("'", "’").replace("`", "")


def test_the_page_is_the_record(html):
    page = BeautifulSoup((html / "book" / "wrong_solutions.html").read_text(), "html.parser")
    rows = json.loads(RECORD.read_text())["result"]["rows"]
    shown = [(*row[:2], plain(row[2]), *row[3:]) for row in rows_of(page)]
    assert shown == [
        (
            row["exercise"].split(".")[1],
            row["wrong"],
            plain(row["fault"]),
            row["caught_by"],
            row["message"].rstrip("\n"),
        )
        for row in rows
    ]


def test_a_new_record_makes_the_page_anew(tmp_path):
    row = {
        "exercise": "lab09.scale",
        "wrong": "bits",
        "fault": "In `bits`.",
        "caught_by": "lab09.x",
    }
    results = tmp_path / "book" / "results"
    results.mkdir(parents=True)
    (tmp_path / "index.md").write_text("# Title\n\n```{wrong-solutions} results/wrong\n```\n")

    def built(*messages: str) -> list[tuple[str, ...]]:
        told = {"result": {"rows": [{**row, "message": message} for message in messages]}}
        (results / "wrong.json").write_text(json.dumps(told))
        options = {"myst_enable_extensions": ["colon_fence", "deflist"]}
        assert build_tiny(tmp_path, ["myst_nb", "wrong_solutions"], **options) == ""
        page = (tmp_path / "_build/html/index.html").read_text()
        return rows_of(BeautifulSoup(page, "html.parser"))

    first = ("scale", "bits", "In bits.", "lab09.x", "2 * 3\n  indented $x$")
    assert built(first[4]) == [first]
    assert built(first[4], "other") == [first, (*first[:4], "other")]
