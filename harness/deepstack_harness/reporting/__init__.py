"""What people and programs read: terminal tables, JSON lines.  Nothing is judged here."""
