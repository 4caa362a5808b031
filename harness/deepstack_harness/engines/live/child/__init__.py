"""Files that run under an engine's interpreter: the engine, torch and the standard library only."""
