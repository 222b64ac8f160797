"""The laboratory of the paper: its experiments, figures, table and claims."""
