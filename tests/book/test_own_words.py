"""The project speaks of itself alone: nothing in it names the machine that it was written on.

Every file that git tracks or would track is read, for absolute paths and registries of packages.
"""

import re
import subprocess

from tests.book.building import ROOT

# In pieces, so that this file does not name them either.
PLACES = (r"/wo" + r"rk/", r"/ro" + r"ot/", r"/ho" + r"me/\w+/")
HOSTS = (
    r"pypi\." + r"org",
    r"pythonhosted\." + r"org",
    r"registry\." + r"npmjs",
    r"npmjs\." + r"com",
)
TEXT = {
    ".py",
    ".md",
    ".yml",
    ".yaml",
    ".toml",
    ".txt",
    ".json",
    ".css",
    ".svg",
    ".bib",
    ".cfg",
    ".ipynb",
    "",
}


def test_no_path_of_a_machine_and_no_registry_is_named():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert "book/index.md" in names
    found = []
    for name in names:
        path = ROOT / name
        if path.suffix in TEXT and path.is_file():
            text = path.read_text(errors="replace")
            found += [f"{name}: {hit}" for hit in re.findall("|".join(PLACES + HOSTS), text)]
    assert found == []
