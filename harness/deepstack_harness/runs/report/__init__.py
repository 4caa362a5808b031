"""Reports of a run: an HTML page, Markdown and annotations for GitHub, JUnit XML.  Nothing is judged here."""
