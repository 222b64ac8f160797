"""The committed page of the contract names every estimator, and none is biased."""

import re
from pathlib import Path

from estimator_table import ESTIMATORS
from test_estimators_unbiased import QUADRATURE

PAGE = Path(__file__).parent.parent / "docs" / "contract.md"


def test_the_page_names_every_estimator_and_every_state_of_it_is_unbiased():
    rows = re.findall(r"^\| (\w+) \|(.*)\|$", PAGE.read_text(), re.M)
    found = {name: [float(cell) for cell in cells.split("|")] for name, cells in rows[1:]}
    assert list(found) == list(ESTIMATORS)
    assert all(len(deviations) == 4 for deviations in found.values())
    assert all(d < QUADRATURE for deviations in found.values() for d in deviations)
