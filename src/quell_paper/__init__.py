"""The laboratory of one paper: its experiments, figures, table and claims."""
