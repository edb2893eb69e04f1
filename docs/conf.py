"""Sphinx configuration: reference pages from docstrings, every warning an error, nothing downloaded."""

import importlib
import pkgutil
from importlib.metadata import version as installed_version

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

project = "amber_trl"
author = "The amber_trl authors"
project_copyright = "2026, the amber_trl authors"
release = version = installed_version("amber_trl")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "data"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"amber_trl {release}"

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# Other libraries' names are shown, not linked: links would need their inventories, hence a network.
nitpicky = True
nitpick_ignore_regex = [
    (
        r"py:class",
        r"amber_trl\..*\.(Restored|_Replay)",
    ),  # described where they are returned or taken
    (
        r"py:.*",
        r"(torch|torchrl|tensordict|gymnasium|numpy|np|pandas|pd|matplotlib|mujoco)(\..*)?|LossModule",
    ),
    (r"py:.*", r"(collections|pathlib|typing|dataclasses|types|enum|os|zipfile)\..*"),
]


def public_names() -> set[str]:
    """``amber_trl.room.Name`` for each name that a room of the library makes public."""
    path = importlib.import_module(project).__path__
    rooms = [f"{project}.{found.name}" for found in pkgutil.iter_modules(path)]
    return {
        f"{room}.{name}"
        for room in rooms
        if not room.endswith("__main__")
        for name in getattr(importlib.import_module(room), "__all__", ())
    }


def documented_names(env: BuildEnvironment) -> dict[str, str]:
    """Full name and page of each Python object that has a reference entry."""
    return {name: entry.docname for name, entry in env.domains.python_domain.objects.items()}


def refuse_undocumented(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn, which fails the build, of each public name that has no reference entry."""
    for name in sorted(public_names() - set(documented_names(env))):
        logging.getLogger(__name__).warning("public name without a reference entry: %s", name)


def resolve_public_path(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.Element
) -> nodes.Node | None:
    """Link a name given by its defining module (as annotations do) to its documented, public path."""
    target = str(node.get("reftarget", ""))
    head, *inner = target.split(".")
    if head != project:
        return None
    entries = documented_names(env)
    for drop in range(1, len(inner)):
        candidate = ".".join([project, *inner[:drop], *inner[drop + 1 :]])
        if candidate in entries:
            return env.domains.python_domain.resolve_xref(
                env, node["refdoc"], app.builder, "obj", candidate, node, contnode
            )
    return None


def keep_colon(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Stop napoleon from reading ``Text: more text`` as ``type: text``; types are annotated here."""
    if what in {"attribute", "data", "property"}:
        lines[:0] = ["..", ""]  # an empty comment


def setup(app: Sphinx) -> None:
    """Register the handlers above."""
    app.connect("autodoc-process-docstring", keep_colon, priority=400)
    app.connect("env-check-consistency", refuse_undocumented)
    app.connect("missing-reference", resolve_public_path)
