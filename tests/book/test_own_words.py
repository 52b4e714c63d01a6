"""The project speaks of itself alone: nothing in it names the machine that it was written on.

Every file that git tracks or would track is read, for absolute paths and registries of packages.
"""

import re
import subprocess

from tests.book.building import ROOT

# Written so that this file does not name them either.
PLACES = (r"/wor[k]/", r"/roo[t]/")
HOSTS = (r"pypi[.]org", r"pythonhosted[.]org", r"npmjs[.](org|com)")


def test_no_path_of_a_machine_and_no_registry_is_named():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert "book/index.md" in names
    found = []
    for path in (ROOT / name for name in names):
        if path.is_file() and path.suffix not in (".safetensors", ".png"):
            found += [f"{path.name}: {hit}" for hit in _named(path.read_text(errors="replace"))]
    assert found == []


def _named(text: str) -> list[str]:
    return [match[0] for match in re.finditer("|".join(PLACES + HOSTS), text)]


def test_scan_sees_what_it_looks_for():
    for words in ("see " + "/work" + "/main", "from " + "pypi" + ".org"):
        assert _named(words)
