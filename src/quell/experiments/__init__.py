"""The experiments of the paper, run and recorded by `quell reproduce`."""
