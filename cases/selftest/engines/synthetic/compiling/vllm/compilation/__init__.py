"""How models are compiled and captured."""
