"""Sphinx's settings: `sphinx-build -n -W docs docs/_build`, with the package and JAX installed."""

import interop

project = "interop"
author = "the interop authors"
project_copyright = author
release = version = interop.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "template"]
html_theme = "furo"
html_title = f"interop {release}"

smartquotes = False  # titles have code in them
myst_heading_anchors = 3

autodoc_typehints = "none"  # types are in the docstrings, in words
napoleon_google_docstring = False
napoleon_use_param = False  # else each word of a type is taken for a class
napoleon_use_rtype = False
