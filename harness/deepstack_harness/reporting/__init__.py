"""Reports for people and programs: tables, pages, JSON lines.  Nothing is judged here."""
