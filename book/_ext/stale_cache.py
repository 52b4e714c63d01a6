"""Throw the execution cache away when labkit has changed.

The cache of executed pages looks at a page's cells only: an edit in labkit, which those cells
import, would go unnoticed. A digest of every file of labkit lies in the cache's folder. When it
differs from the files on disk, the cache is deleted and every page is read, and so executed, again.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

logger = logging.getLogger(__name__)
STAMP = "labkit.sha256"


def digest(package: Path) -> str:
    """Return one hash of the names and contents of all files of a package."""
    total = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            total.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def forget_stale(app: Sphinx) -> None:
    """Delete the cache unless it was filled by this very labkit."""
    cache = Path(app.config.nb_execution_cache_path or Path(app.outdir).parent / ".jupyter_cache")
    stamp = cache / STAMP
    now = digest(Path(app.srcdir) / "labkit")
    if cache.is_dir() and (not stamp.exists() or stamp.read_text() != now):
        logger.info("labkit has changed: pages will be executed again")
        shutil.rmtree(cache)
    cache.mkdir(parents=True, exist_ok=True)
    stamp.write_text(now)


def outdated(app: Sphinx, env: BuildEnvironment, *sets_of_pages: Any) -> list[str]:
    """Name every page when the last build saw another labkit."""
    now = digest(Path(app.srcdir) / "labkit")
    before, env.labkit_digest = getattr(env, "labkit_digest", now), now  # type: ignore[attr-defined]
    return [] if before == now else sorted(env.found_docs)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", forget_stale)
    app.connect("env-get-outdated", outdated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
