"""Sequences, values and intervals against definitions and hand-made examples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuc.errors import DataError
from npuc.verification.judging.metric import estimate
from npuc.verification.judging.sequences import Sequences, edit_distance, greedy
from npuc.verification.judging.values import Values


def word(text: str) -> np.ndarray:
    return np.array([ord(each) - ord("a") + 1 for each in text], np.int64)


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [
        # as textbooks have them (Jurafsky and Martin, section 2.5, where each change costs 1)
        ("intention", "execution", 5),
        ("kitten", "sitting", 3),
        ("saturday", "sunday", 3),
        ("flaw", "lawn", 2),
        ("", "abc", 3),
        ("abc", "", 3),
        ("", "", 0),
        ("abc", "abc", 0),
        ("a", "b", 1),
    ],
)
def test_edit_distance_is_that_of_textbooks(first: str, second: str, distance: int) -> None:
    assert edit_distance(word(first), word(second)) == distance == edit_distance(word(second), word(first))


@given(st.text("abc", max_size=7), st.text("abc", max_size=7))
def test_edit_distance_is_its_recursive_definition(first: str, second: str) -> None:
    def distance(a: str, b: str) -> int:
        if not a or not b:
            return len(a) + len(b)
        change = distance(a[1:], b[1:]) + (a[0] != b[0])
        return min(change, distance(a[1:], b) + 1, distance(a, b[1:]) + 1)

    assert edit_distance(word(first), word(second)) == distance(first, second)


@pytest.mark.parametrize(
    ("best", "read"),
    # Graves et al., Connectionist Temporal Classification, 2006, section 3.1: B(a-ab-) = B(-aa--abb) = aab
    [("a-ab-", "aab"), ("-aa--abb", "aab"), ("-----", ""), ("aaaa", "a"), ("a-a", "aa")],
)
def test_greedy_decoding_is_the_paper_s(best: str, read: str) -> None:
    path = np.array([0 if each == "-" else ord(each) - ord("a") + 1 for each in best])
    assert greedy(np.eye(3)[path], 0).tolist() == word(read).tolist()
    last = np.array([2 if each == "-" else ord(each) - ord("a") for each in best])
    assert greedy(np.eye(3)[last], 2).tolist() == (word(read) - 1).tolist()


def output(path: str) -> np.ndarray:
    """(1, steps, 4): blank, a, b, c with a mean that is not zero."""
    best = np.array([0 if each == "-" else ord(each) - ord("a") + 1 for each in path])
    return (np.eye(4)[best] * 3 + 5)[None].astype(np.float32)


def test_cer_is_errors_over_characters_of_labels_or_of_fp32() -> None:
    metric = Sequences("o", 5, 4)
    exact = [metric.digest({"o": output(each)}, {}, None) for each in ("a-b-c", "aabb-", "c----")]
    found = [metric.digest({"o": output(each)}, {}, None) for each in ("a-b--", "aabb-", "cb---")]
    both = {"fp32": exact, "simulator": found}
    report = metric.report(both, None)
    assert report["characters"] == 3 + 2 + 1
    assert report["fp32"]["cer"] == 0 and report["simulator"]["cer"] == pytest.approx(2 / 6)
    assert report["simulator"]["right"] == report["simulator"]["agreement"] == pytest.approx(1 / 3)
    labels = np.array([[1, 2, 3, 3], [1, 2, -1, -1], [2, 2, 2, 2]])
    report = metric.report(both, labels)
    # fp32: abc for abcc, ab for ab, c for bbbb: 1 + 0 + 4 of 10; simulator: ab, ab, cb: 2 + 0 + 3
    assert report["characters"] == 10
    assert report["fp32"]["cer"] == pytest.approx(0.5) and report["simulator"]["cer"] == pytest.approx(0.5)
    assert report["simulator"]["difference"] == 0 and report["simulator"]["right"] == pytest.approx(1 / 3)
    assert report["simulator"]["interval"][0] <= 0.5 <= report["simulator"]["interval"][1]


def test_columns_and_the_last_class_as_blank_read_the_same() -> None:
    rows = Sequences("o", 5, 4).digest({"o": output("ab-b-")}, {}, None).characters
    turned = np.roll(output("ab-b-"), -1, axis=2).transpose(0, 2, 1)
    columns = Sequences("o", 5, 4, "columns", "last").digest({"o": turned}, {}, None).characters
    assert rows.tolist() == word("abb").tolist() and (columns + 1).tolist() == rows.tolist()


def test_steps_that_nobody_names_must_be_probabilities() -> None:
    logits = output("ab-b-")
    powers = np.exp(logits)
    shares = powers / powers.sum(axis=2, keepdims=True)
    for values, sound in ((logits, False), (shares, True), (np.log(shares), True), (shares - 0.02, False)):
        for certain in (False, True):
            metric = Sequences("o", 5, 4, certain=certain)
            digests = {"fp32": [metric.digest({"o": values}, {}, None)] * 2}
            if sound or certain:
                assert metric.report(digests, None)["characters"] == 6
            else:
                with pytest.raises(DataError, match="no probabilities"):
                    metric.report(digests, None)


@pytest.mark.parametrize(
    "labels",
    [
        np.array([1, 2]),
        np.array([["a"], ["b"]]),
        np.array([[1.5], [1]]),
        np.array([[np.nan], [1]]),
        np.array([[0], [1]]),  # the blank
        np.array([[4], [1]]),  # no class
        np.array([[-1], [-1]]),
        np.zeros((2, 0), np.int64),
    ],
)
def test_labels_that_are_no_sequences_are_refused(labels: np.ndarray) -> None:
    metric = Sequences("o", 5, 4)
    exact = [metric.digest({"o": output("ab---")}, {}, None)] * 2
    with pytest.raises(DataError) as caught:
        metric.report({"fp32": exact}, labels)
    assert caught.value.problems[0].code == "E402"


X = np.random.default_rng(5).normal(40, 3, (6, 1, 7))
Y = X * 0.5 + np.random.default_rng(6).normal(-9, 1, X.shape)


def test_pearson_and_l1_are_numpy_s() -> None:
    metric = Values(("o", "p"), labelled=False)
    exact = [metric.digest({"o": y, "p": -y}, {"o": y, "p": -y}, None) for y in Y]
    found = [metric.digest({"o": x, "p": x}, {"o": y, "p": -y}, None) for x, y in zip(X, Y, strict=True)]
    report = metric.report({"fp32": exact, "simulator": found}, None)
    correlation = np.corrcoef(X.ravel(), Y.ravel())[0, 1]
    assert report["simulator"]["pearson"] == pytest.approx(correlation, rel=1e-9)
    assert report["simulator"]["l1"] == pytest.approx(np.abs(X - Y).mean(), rel=1e-12)
    assert report["fp32"]["l1"] == 0 and report["fp32"]["pearson"] == pytest.approx(1)
    first, second = report["simulator"]["outputs"]
    assert first["pearson"] == report["simulator"]["pearson"]
    assert second["pearson"] == pytest.approx(-correlation, rel=1e-9)
    assert second["l1"] == pytest.approx(np.abs(X + Y).mean(), rel=1e-12)
    low, high = report["simulator"]["pearson_interval"]
    assert low < correlation < high


def test_labels_are_compared_with_the_first_output() -> None:
    metric = Values(("o", "p"), labelled=True)
    outputs = [{"o": x, "p": x * np.nan} for x in X]
    exact = [metric.digest(each, each, y) for each, y in zip(outputs, Y[:, 0], strict=True)]
    report = metric.report({"fp32": exact, "simulator": exact}, Y)
    assert len(report["fp32"]["outputs"]) == 1
    assert report["fp32"]["l1"] == pytest.approx(np.abs(X - Y).mean())
    assert report["simulator"]["difference"] == 0
    with pytest.raises(DataError, match="3 values a sample"):
        metric.digest(outputs[0], outputs[0], np.zeros(3))
    with pytest.raises(DataError, match="not finite"):
        metric.digest(outputs[0], outputs[0], np.full(7, np.nan))


def test_what_is_constant_has_no_correlation() -> None:
    metric = Values(("o",), labelled=False)
    same = [metric.digest({"o": x}, {"o": np.full_like(x, 0.1)}, None) for x in X]
    row = metric.report({"fp32": same}, None)["fp32"]
    assert row["pearson"] is None and row["pearson_interval"] is None and row["l1"] > 0


def test_the_bootstrap_of_a_mean_is_nearly_the_normal_interval() -> None:
    values = np.random.default_rng(7).normal(10, 2, 400)

    def statistic(weights: np.ndarray) -> np.ndarray:
        return np.stack([weights @ values / 400, np.full(len(weights), np.nan)], axis=1)

    (mean, limits), nothing = estimate(statistic, 400)
    assert mean == pytest.approx(values.mean()) and limits is not None and nothing == (None, None)
    half = 1.96 * values.std() / 20
    assert limits == pytest.approx((values.mean() - half, values.mean() + half), abs=0.25 * half)
    assert estimate(statistic, 400)[0] == (mean, limits)
    assert estimate(lambda weights: weights, 1) == [(1.0, None)]
