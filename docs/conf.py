"""How `make docs` builds the site."""

import os
import re
import shutil
import subprocess
import sys

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.utils.math import latex2mathml

from torchvars import __version__
from torchvars.explorer.server import PAGE

project = "torchvars"
author = "The torchvars authors"
copyright = author
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build"]
default_role = "py:obj"  # `name` in a doc-string

html_theme = "furo"
html_title = f"torchvars {version}"
html_show_sphinx = False
html_math_renderer = "mathml"

myst_enable_extensions = ["dollarmath", "amsmath", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True

sphinx_gallery_conf = {
    "examples_dirs": ["../examples/gallery"],
    "gallery_dirs": ["gallery"],
    "filename_pattern": "/plot_",
    "within_subsection_order": "FileNameSortKey",
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "remove_config_comments": True,
    "abort_on_example_error": True,
}


def setup(app) -> None:
    app.add_html_math_renderer("mathml", (inline_formula, None), (formula, None))
    app.add_directive("help", Help)
    app.connect("autodoc-process-docstring", to_restructured_text, priority=400)  # before the sections are read
    app.connect("source-read", link_within_the_site)
    app.connect("build-finished", with_explorer)


# Formulas as MathML, which browsers draw by themselves: no script, and nothing from another server.


def inline_formula(writer, node: nodes.math) -> None:
    writer.body.append(latex2mathml.tex2mathml(node.astext()))
    raise nodes.SkipNode


def formula(writer, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="math">{latex2mathml.tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


class Help(Directive):
    """What `torchvars COMMAND --help` prints."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        command = [sys.executable, "-m", "torchvars", *self.arguments, "--help"]
        environment = {**os.environ, "COLUMNS": "100"}
        printed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
        return [nodes.literal_block(printed, printed, language="text")]


def to_restructured_text(app, kind: str, name: str, thing, options, lines: list[str]) -> None:
    """Doc-strings are plain text with `code` and indented formulas: escapes what else would have a meaning."""
    # An empty line before that of a property, whose first words would else be taken for its type.
    found, in_formula, in_section = [""] if kind in ("attribute", "property") else [], False, False
    for index, line in enumerate(lines):
        indented = line.startswith("    ")
        if line and not indented:
            in_formula, in_section = False, bool(re.fullmatch(r"[A-Z]\w+:", line))
        if indented and not in_section and not in_formula and (index == 0 or not lines[index - 1]):
            in_formula = True
            found += ["::", ""]
        found.append(line if in_formula else escape(line))
    lines[:] = found


def escape(line: str) -> str:
    """A line of text in which `|`, `*` and a trailing `_` stand for themselves, but for what is in backticks."""
    parts = line.split("`")
    parts[::2] = [re.sub(r"([|*]|_(?!\w))", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def link_within_the_site(app, name: str, content: list[str]) -> None:
    """Pages that are at the root of the repository have another name here."""
    for page in ("CONTRIBUTING", "CHANGELOG"):
        content[0] = re.sub(rf"\]\((\.\./)+{page}\.md", f"](/{page.lower()}.md", content[0])


def with_explorer(app, error: Exception | None) -> None:
    """The explorer is a page of the site: its files go beside those that Sphinx writes."""
    if error is None and app.builder.format == "html":
        shutil.copytree(PAGE, os.path.join(app.outdir, "explorer"), dirs_exist_ok=True)
