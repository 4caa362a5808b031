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

extensions = ["myst_parser", "sphinx_copybutton", "command_options"]
exclude_patterns = ["extensions"]

# Links between pages, and to headings in them, are checked; those to other hosts are not fetched.
nitpicky = True
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "fieldlist"]

# The page asks no other host for anything: furo brings its own scripts and uses the fonts of the system.
html_theme = "furo"
html_title = "deepstack-harness"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}

# The prompt is shown and not copied, and the lines that a command prints are not copied either.
copybutton_prompt_text = "$ "
