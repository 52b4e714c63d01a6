"""Full-text search for English and Chinese together, without a dictionary.

Chinese is written without spaces, and a word list misses the compounds of a field (张量并行). So a
run of Chinese characters is cut into overlapping pairs, in the index and in the query alike:
张量并行 becomes 张量, 量并, 并行, and a page is found when it has all three. English words are
stemmed as before, so "reduced" finds "reduce".
"""

import re
from collections.abc import Iterator

from sphinx.application import Sphinx
from sphinx.search import languages
from sphinx.search.en import SearchEnglish

WORD = re.compile(r"[\u3400-\u9fff]+|[0-9A-Za-z_]+")

# The same cut for the query, in the reader's browser.
SPLIT_QUERY = r"""
const isChinese = (word) => /[\u3400-\u9fff]/.test(word);
const pairs = (run) => [...Array(run.length - 1).keys()].map((i) => run.slice(i, i + 2));
var splitQuery = (query) => (query.match(/[\u3400-\u9fff]+|[0-9A-Za-z_]+/g) || []).flatMap(
  (word) => isChinese(word) && word.length > 2 ? pairs(word) : [word]);
"""


def is_chinese(word: str) -> bool:
    return "\u3400" <= word[:1] <= "\u9fff"


class SearchChinesePairs(SearchEnglish):
    """English search with Chinese character pairs beside it."""

    lang = "zh"
    language_name = "Chinese and English"
    js_splitter_code = SPLIT_QUERY

    def split(self, input: str) -> list[str]:
        return list(cut(input))

    def stem(self, word: str) -> str:
        return word if is_chinese(word) else super().stem(word)

    def word_filter(self, word: str) -> bool:
        return is_chinese(word) or super().word_filter(word)


def cut(text: str) -> Iterator[str]:
    """Yield the words of a text; runs of Chinese as overlapping pairs."""
    for word in WORD.findall(text):
        if is_chinese(word) and len(word) > 2:
            yield from (word[i : i + 2] for i in range(len(word) - 1))
        else:
            yield word


def setup(app: Sphinx) -> dict[str, bool]:
    languages["zh"] = SearchChinesePairs
    return {"parallel_read_safe": True, "parallel_write_safe": True}
