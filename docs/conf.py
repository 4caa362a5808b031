"""Settings of the site: `python3 -m tox -e docs` builds it, and every warning is an error."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "harness"), str(ROOT / "docs" / "extensions")]

from deepstack_harness import __version__  # noqa: E402  # found by the lines above

project = "deepstack-harness"
author = "the authors of deepstack-harness"
project_copyright = "the authors of deepstack-harness, Apache-2.0"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "command_options",
    "gallery",
    "package_facts",
]
exclude_patterns = ["extensions"]

# Links between pages, and to headings in them, are checked; those to other hosts are not fetched.
nitpicky = True
# Types in signatures: those of other projects, and of our rooms, which are private.
nitpick_ignore_regex = [
    ("py:.*", r"(?:_pytest|collections|hypothesis|pathlib|torch|typing_extensions)\..*|Tensor"),
    ("py:.*", r"deepstack_harness\.[a-z_]+\..*"),
]
default_role = "code"  # `name` in docstrings
autodoc_class_signature = "mixed"
autodoc_typehints_format = "short"
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "fieldlist"]

# The page asks no other host for anything: furo brings its own scripts and uses the fonts of the system.
html_theme = "furo"
smartquotes = False  # `--option` outside of code keeps both of its hyphens
html_title = "deepstack-harness"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}

# The prompt is shown and not copied, and the lines that a command prints are not copied either.
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
