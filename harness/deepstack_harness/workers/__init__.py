"""Child processes: started, limited, watched and ended."""
