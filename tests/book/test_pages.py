"""What the pages must hold, read from their sources and from the built files, without a browser.

Promised: every link inside the book leads somewhere, every picture has alt text, the glossary has a
Chinese term in each row, the plan of the course says of each chapter whether it is here, and the
first page says when the copy needs a network.
"""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from bs4 import BeautifulSoup

from tests.book.building import ROOT

BOOK = ROOT / "book"
# Terms that readers of either language must find.
TERMS = {
    "data parallelism": "数据并行",
    "tensor parallelism": "张量并行",
    "pipeline parallelism": "流水并行",
    "expert parallelism": "专家并行",
    "hybrid parallelism": "混合并行",
    "parameter server": "参数服务器",
    "gradient aggregation": "梯度聚合",
    "device memory": "显存",
    "memory wall": "内存墙",
    "post-training quantisation": "训练后量化",
    "quantisation-aware training": "训练时量化",
    "fused operator": "融合算子",
    "memory fragmentation": "内存碎片化",
    "row split": "按行切分",
    "column split": "按列切分",
    "block product": "分块相乘",
    "throughput": "吞吐量",
    "all-reduce": "全归约",
    "broadcast": "广播",
    "point-to-point": "点对点通信",
    "deadlock": "死锁",
    "ring": "环",
}

# What chapter 1 must show, computed by its cells or read from records: never typed.
CHAPTER_1 = (
    *("1,129 GB", "70.55 billion parameters, 69.50 are in products", "417 GFLOP a token", "423"),
    *("120.0 / 31.4 / 16.6 / 1.9 GB a rank", "144.0 KiB", "320.0 KiB", "504.0 KiB", "68.6 KiB"),
    *("32 GB in fp32, 16 GB in fp16, 16 GB in bf16, 8 GB in fp8, 8 GB in int8", "93, not 20"),
    *("figure and got 18", "recomputation: 175B selective", "zero3-and-3d: ZeRO-3 530B on 2240"),
)


@pytest.fixture(scope="module")
def soups(html) -> dict[Path, BeautifulSoup]:
    """Every built page, parsed, by its path."""
    files = [html / "index.html", html / "genindex.html", *(html / "book").rglob("*.html")]
    return {path: BeautifulSoup(path.read_text(), "html.parser") for path in files}


def test_links_inside_the_book_lead_somewhere(soups):
    anchors = {path: {tag["id"] for tag in soup.select("[id]")} for path, soup in soups.items()}
    broken = []
    for path, soup in soups.items():
        for tag in soup.select("a[href], img[src], link[href], script[src]"):
            address = urlsplit(tag.get("href") or tag.get("src"))
            if address.scheme or address.netloc:
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            known = anchors.get(target, {address.fragment}) | {""}
            if not target.exists() or unquote(address.fragment) not in known:
                broken.append(f"{path.name}: {address.geturl()}")
    assert broken == []


def test_every_picture_has_alt_text(soups):
    bare = []
    for path, soup in soups.items():
        bare += [
            f"{path.name}: {tag}"[:200]
            for tag in soup.select("img")
            if not tag.get("alt", "").strip()
        ]
        for widget in re.findall(
            r"<img (?:(?!>).)*", "".join(s.text for s in soup.select("script"))
        ):
            if not re.search(r'alt=\\?"[^"\\]{20,}', widget):
                bare.append(f"{path.name}: {widget[:120]}")
    assert bare == []


def test_glossary_gives_every_term_in_both_languages():
    rows = glossary()
    assert len(rows) >= 70
    for term, chinese, meaning in rows:
        assert re.search(r"[\u3400-\u9fff]", chinese), term
        assert re.fullmatch(r"[A-Z].*\.|\{term\}.*\.", meaning, re.DOTALL), f"{term}: one sentence"
    assert {term: chinese for term, chinese, _ in rows if term in TERMS} == TERMS
    for column in (0, 1):
        words = [row[column] for row in rows]
        assert len(words) == len(set(words)), "each term once"


def glossary() -> list[tuple[str, str, str]]:
    """Return term, Chinese term and meaning of every row of the source."""
    body = re.search(
        r"```\{glossary\}\n:sorted:\n(.*)```", (BOOK / "glossary.md").read_text(), re.DOTALL
    )
    rows = [block.splitlines() for block in body[1].strip().split("\n\n")]
    return [(row[0], row[1], " ".join(line.strip() for line in row[2:])) for row in rows]


def test_glossary_shows_three_columns(soups, html):
    items = (
        soups[html / "book" / "glossary.html"]
        .select_one("dl.glossary")
        .find_all(["dt", "dd"], recursive=False)
    )
    assert [item.name for item in items] == ["dt", "dt", "dd"] * (len(items) // 3)


def test_plan_of_the_course_agrees_with_the_contents():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    files = [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    here = {int(match[1]): name for name in files if (match := re.search(r"part\d/(\d\d)_", name))}
    rows = re.findall(
        r"^\| (\d+) \| (.+?) \| (.+?) \|$", (BOOK / "index.md").read_text(), re.MULTILINE
    )
    assert [int(number) for number, _, _ in rows] == list(range(1, 17))
    for number, title, state in rows:
        if int(number) in here:
            assert state == "**yes**", title
            assert here[int(number)].removeprefix("book/") in title
        else:
            assert state == "planned", title
            assert "](" not in title


def test_every_page_of_the_book_is_in_the_contents():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    files = {chapter["file"] for part in toc["parts"] for chapter in part["chapters"]} | {
        toc["root"]
    }
    sources = {str(path.relative_to(ROOT).with_suffix("")) for path in BOOK.rglob("*.md")}
    assert sources - {"book/LICENSE"} == files


def test_first_page_tells_when_it_needs_a_network(soups, html):
    text = soups[html / "book" / "index.html"].get_text()
    complete = (html / "_static" / "vendor" / "mathjax").is_dir()
    assert ("built without" in text) != complete


def test_chapter_1_shows_the_numbers_that_it_must(soups, html):
    soup = soups[html / "book" / "part1" / "01_one_gpu.html"]
    text = " ".join(soup.get_text().split())
    assert [number for number in CHAPTER_1 if number not in text] == []


def test_chapter_1_names_no_number_that_its_cells_did_not_make():
    source = (BOOK / "part1" / "01_one_gpu.md").read_text()
    prose = re.sub(r"^(```|````).*?^\1$", "", source, flags=re.DOTALL | re.MULTILINE)
    for typed in ("417", "423", "1,129", "70.55", "93", "31.4", "16.6", "42.1", "34.6"):
        assert not re.search(rf"(?<![\d.,]){re.escape(typed)}(?![\d,]|\.\d)", prose), typed
