"""Chinese compounds are found without a dictionary, and English words by their stem.

Oracle: the rule itself on both sides. A query finds a text when each of its pieces is among the
text's; the reader's browser must cut a query as the index was cut. test_browser searches the book.
"""

import json
import subprocess
import sys

import pytest

from tests.book.building import EXTENSIONS, build_tiny

sys.path.append(str(EXTENSIONS))
from chinese_search import SPLIT_QUERY, SearchChinesePairs, cut

TEXT = """分布式训练把数据并行、张量并行与流水并行放在一起。反向传播之后做全归约，
梯度聚合用参数服务器。键值缓存占用显存，内存碎片化降低吞吐量；
训练后量化与训练时量化减少内存墙的影响。融合算子、按列切分、分块相乘。"""
FOUND = [
    *(
        "分布式训练",
        "张量并行",
        "反向传播",
        "键值缓存",
        "全归约",
        "并行与",
        "梯度聚合",
        "参数服务器",
    ),
    *("内存碎片化", "训练后量化", "训练时量化", "内存墙", "融合算子", "分块相乘", "按列切分"),
]
NOT_FOUND = ("并行张量", "量张", "专家并行", "缓存键值")


@pytest.mark.parametrize("query", FOUND)
def test_compound_is_found(query):
    assert set(cut(query)) <= set(cut(TEXT))


@pytest.mark.parametrize("query", NOT_FOUND)
def test_other_words_of_the_same_characters_are_not(query):
    assert not set(cut(query)) <= set(cut(TEXT))


def test_one_character_and_mixed_text_are_cut_as_said():
    assert list(cut("环")) == ["环"]
    assert list(cut("用ring做全归约 in 2 steps")) == [
        "用",
        "ring",
        "做全",
        "全归",
        "归约",
        "in",
        "2",
        "steps",
    ]


def test_browser_cuts_a_query_as_the_index_was_cut():
    queries = [*FOUND, *NOT_FOUND, "环", "all-reduce 全归约 of KV_cache 2x", "", "，。"]
    script = f"{SPLIT_QUERY}\nconsole.log(JSON.stringify({json.dumps(queries)}.map(splitQuery)))"
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [list(cut(query)) for query in queries]


def test_english_is_stemmed_and_its_small_words_are_dropped(tmp_path):
    language = SearchChinesePairs({})
    assert language.stem("reduced") == language.stem("reduces") == "reduc"
    assert language.stem("量化") == "量化"
    assert not language.word_filter("the")
    assert language.word_filter("环")


def test_index_of_a_book_has_pairs_and_stems(tmp_path):
    (tmp_path / "index.md").write_text(f"# Title\n\n{TEXT} The gradients are reduced.\n")
    warnings = build_tiny(tmp_path, ["myst_nb", "chinese_search"], html_search_language="zh")
    index = (tmp_path / "_build/html/searchindex.js").read_text()
    terms = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))["terms"]
    assert {"张量", "量并", "并行", "gradient", "reduc"} <= set(terms)
    assert "splitQuery" in (tmp_path / "_build/html/_static/language_data.js").read_text()
    assert warnings == ""
