"""The nightly run: stages in processes of their own."""
