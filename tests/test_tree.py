"""The README's tree is true, and the tree holds nothing that it should not.

The phrase of a Python file is the first line of its docstring. `python tests/test_tree.py` writes
the tree into README.md; the test says when that is due.
"""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BEGIN, END = "<!-- tree -->", "<!-- end of tree -->"
PHRASES = {  # what has no docstring
    "book": "the course's pages: text notebooks in MyST",
    "book/_ext": "Sphinx extensions of our own",
    "book/_static": "style sheet, logo",
    "book/results": "recorded measurements, with machine, versions and commit",
    "labkit": "the reference implementations",
    "labkit/bench": "measurements beside peers",
    "labkit/cli": "the commands of `python -m labkit`",
    "labkit/comm": "torch.distributed made readable",
    "labkit/compose": "strategies put together on the course's model, and its checkpoints",
    "labkit/cost": "formulas: bytes, FLOPs, seconds, prices, and the planner",
    "labkit/grade": "checks, points and feedback of the labs",
    "labkit/grade/messages": "what a failed check says, and hints",
    "labkit/grade/pristine": "learner notebooks as handed out",
    "labkit/launch": "ranks of one host, from a notebook cell, a test or a script",
    "labkit/measure": "what happened: ledgers, memory, virtual time",
    "labkit/model": "the one-process model, its text and its files",
    "labkit/parallel": "strategies, one a file",
    "labkit/parallel/context": "attention over a sequence that ranks share: ring, gather, heads",
    "labkit/parallel/pipeline": "schedules as data, and what runs, checks and simulates them",
    "labkit/simulate": "the same code as one rank of a world of thousands, with fake tensors",
    "labkit/train": "the trainer",
    "labkit/viz": "figures and widgets: data in, axes out",
    "labkit/viz/words": "every word inside a picture, to be translated",
    "labs": "notebooks that learners complete, their masters and solutions",
    "tests": "mirrors labkit; and the built book in a real browser",
}
TOP = {
    *("book", "labs", "labkit", "tests", "_config.yml", "_toc.yml", "requirements.txt"),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "CITATION.cff", "pyproject.toml"),
    *("Makefile", ".gitignore", ".editorconfig", ".pre-commit-config.yaml", ".ci"),
}
KIB = 1024


def files() -> list[str]:
    """What git tracks or would track."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    out = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout
    return sorted(path for path in out.splitlines() if (ROOT / path).is_file())


def phrase(path: str) -> str:
    docstring = ast.get_docstring(ast.parse((ROOT / path).read_text())) or ""
    first = docstring.split("\n\n")[0].splitlines()
    return first[0].removesuffix(".") if first else ""


def tree() -> str:
    """labkit file by file, everything else folder by folder."""
    lines = []
    for folder in sorted(PHRASES):
        depth = folder.count("/")
        lines.append(
            f"{'  ' * depth}{folder.split('/')[-1] + '/':<{24 - 2 * depth}}{PHRASES[folder]}"
        )
        if folder.startswith("labkit"):
            names = [p for p in files() if str(Path(p).parent) == folder and p.endswith(".py")]
            for path in names:
                if phrase(path):
                    name = "  " * (depth + 1) + Path(path).name
                    lines.append(f"{name:<23} {phrase(path)}")
    return "\n".join(lines)


def test_the_readme_tree_is_true():
    shown = README.read_text().split(BEGIN)[1].split(END)[0].strip().strip("`").strip("\n")
    assert shown == tree(), "run: python tests/test_tree.py"


def test_every_folder_has_a_phrase():
    folders = {str(Path(p).parent) for p in files() if p.startswith(("labkit/", "book/"))}
    named = {f for f in folders if not re.match(r"labkit/model/pretrained|book/(part|locale)", f)}
    assert named - PHRASES.keys() == set()


def test_the_top_level_is_the_designs():
    assert {path.split("/")[0] for path in files()} - TOP == set()


def test_no_large_file():
    """500 KiB a file; weights and lab notebooks are exempt."""
    large = [
        path
        for path in files()
        if (ROOT / path).stat().st_size > 500 * KIB
        and not path.endswith((".safetensors", ".ipynb"))
    ]
    assert large == []


@pytest.mark.parametrize("path", [p for p in files() if Path(p).suffix in {".py", ".md", ".yml"}])
def test_text_is_clean(path):
    """No trailing blanks or tabs, one newline at the end, no open ends."""
    text = (ROOT / path).read_text()
    assert text == "" or (text.endswith("\n") and not text.endswith("\n\n"))
    assert not re.search(r"[ \t]+$", text, re.MULTILINE)
    assert not re.search(r"\b(TO" r"DO|FIX" r"ME)\b", text)


if __name__ == "__main__":
    before, rest = README.read_text().split(BEGIN)
    after = rest.split(END)[1]
    README.write_text(f"{before}{BEGIN}\n```\n{tree()}\n```\n{END}{after}")
