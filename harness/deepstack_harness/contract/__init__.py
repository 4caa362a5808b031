"""The contract between engines and buffers: rules, traces, cases, interfaces, the ledger; knows no torch."""
