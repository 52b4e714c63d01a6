"""Make the built book complete: no page asks the network for anything.

Two packages that pages would otherwise load from other hosts are fetched once, at build time:
MathJax for formulas and the widget manager for figures that move. `npm pack` brings the bare
archive, with no dependencies and no install scripts; it is kept under _build/.assets, and the files
that pages need are copied to _static/vendor. Where npm is missing or fails the book is built all
the same, with the addresses on the network, and the tag `online` puts a note on the first page.
"""

import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util import logging

logger = logging.getLogger(__name__)

MATHJAX = "mathjax@3.2.2"
WIDGETS = "@jupyter-widgets/html-manager@1.0.15"
# package -> (files or folders inside it, their folder under _static/vendor)
FILES = {
    MATHJAX: (
        ("es5/tex-mml-chtml.js", "mathjax"),
        ("es5/output/chtml/fonts", "mathjax/output/chtml"),
        ("es5/input/tex/extensions", "mathjax/input/tex"),
        ("es5/a11y", "mathjax"),
        ("es5/sre", "mathjax"),
        ("es5/ui", "mathjax"),
    ),
    WIDGETS: (("dist/embed.js", "html-manager"), ("dist/*.woff2", "html-manager")),
}
LOCAL = {
    "mathjax_path": "vendor/mathjax/tex-mml-chtml.js",
    "nb_ipywidgets_js": {"vendor/html-manager/embed.js": {}},
}


def fetch(package: str, cache: Path) -> Path:
    """Return the unpacked folder of an npm package, fetched unless it is cached."""
    folder = cache / package.replace("/", "+")
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", "--silent", "--ignore-scripts", package]
        done = subprocess.run(
            command, cwd=cache, check=True, capture_output=True, text=True, timeout=120
        )
        with tarfile.open(cache / done.stdout.split()[-1]) as archive:
            archive.extractall(cache / "unpacked", filter="data")
        (cache / "unpacked").rename(folder)  # only a whole package gets the final name
    return folder / "package"


def bring_assets(app: Sphinx, config: Config) -> None:
    """Fetch both packages and point the pages at them; on failure leave the addresses alone."""
    app.assets_from = {}  # type: ignore[attr-defined]
    try:
        cache = Path(config.asset_cache or Path(app.outdir).parent / ".assets")
        found = {package: fetch(package, cache) for package in FILES}
    except (OSError, subprocess.SubprocessError, tarfile.TarError, IndexError) as error:
        logger.info("offline assets: none (%s); maths and widgets need a network", error)
        app.tags.add("online")
        return
    app.assets_from = found  # type: ignore[attr-defined]
    for name, value in LOCAL.items():
        config[name] = value


def copy_assets(app: Sphinx) -> None:
    """Copy the files that pages load into the built book."""
    if app.builder.format != "html":
        return
    vendor = Path(app.outdir) / "_static" / "vendor"
    for package, root in app.assets_from.items():  # type: ignore[attr-defined]
        for pattern, folder in FILES[package]:
            (vendor / folder).mkdir(parents=True, exist_ok=True)
            for source in root.glob(pattern):
                target = vendor / folder / source.name
                if source.is_dir():
                    shutil.copytree(source, target, dirs_exist_ok=True)
                else:
                    shutil.copy2(source, target)


def drop_thebe(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Remove the theme's unused kernel scripts: they name another host and clash on every page."""
    context["script_files"] = [
        script for script in context["script_files"] if "thebe" not in _text(script).lower()
    ]


def _text(script: Any) -> str:
    attributes = getattr(script, "attributes", {})
    return f"{getattr(script, 'filename', script)} {attributes.get('body', '')}"


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("asset_cache", None, "")
    app.connect("config-inited", bring_assets, priority=900)
    app.connect("builder-inited", copy_assets)
    app.connect("html-page-context", drop_thebe, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
