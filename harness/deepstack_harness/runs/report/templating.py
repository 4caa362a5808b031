"""Templates of the HTML pages, and the files next to them. Nothing here draws, or imports what draws."""

from importlib.resources import files

import jinja2

from deepstack_harness.text import plural, shortened

_PACKAGE = "deepstack_harness.runs.report"


def new_environment() -> jinja2.Environment:
    """Return an environment of all templates: everything is escaped, and an unknown name is an error."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"plural": plural, "shortened": shortened}
    return environment


def template_text(name: str) -> str:
    """Return the text of a file next to the templates."""
    return (files(_PACKAGE) / "templates" / name).read_text(encoding="utf-8")
