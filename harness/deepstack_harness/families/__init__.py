"""Tiny, randomly initialised decoders of real model families, one short file each."""
