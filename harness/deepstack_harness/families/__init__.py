"""Tiny, randomly initialised decoders of real model families, one file per family."""
