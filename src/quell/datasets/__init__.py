"""Data sets: the paper's and some more ship, others come from packages or a CSV file."""

from quell.datasets._csv import classification as classification
from quell.datasets._csv import from_csv as from_csv
from quell.datasets._csv import regression as regression
from quell.datasets._load import load as load
from quell.datasets._shipped import airfoil as airfoil
from quell.datasets._shipped import titanic as titanic
