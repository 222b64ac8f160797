"""Estimators side by side on one problem: variance, time, and which of them to use."""

from quell._compare._compare import BASELINES as BASELINES
from quell._compare._compare import compare as compare
from quell._compare._record import Comparison as Comparison
from quell._compare._record import Row as Row
