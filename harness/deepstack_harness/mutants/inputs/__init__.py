"""Mutants whose fault shows only on unusual payloads and histories (`catalogue.input_traces`)."""
