"""Recall, precision-recall and training curves show the numbers they were given."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from tests.figures.little_town import make_report

from sareloc.errors import ArgumentError
from sareloc.evaluation import CurvePoint
from sareloc.figures import (
    PrecisionRecallCurve,
    draw_precision_recall,
    draw_recall,
    draw_training,
    read_history,
    read_report,
)
from sareloc.training import EpochRecord, RunFolder, RunState

RECALL = {1: 60.0, 5: 80.0, 10: 90.0}


def labelled(axes) -> dict:
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def epochs(count: int, **values: float) -> tuple[EpochRecord, ...]:
    return tuple(
        EpochRecord(e, 1 / e, 0.001, 10, 120, 1.0, **{k: v * e / 10 for k, v in values.items()})
        for e in range(1, count + 1)
    )


def test_the_start_has_recall_and_no_loss() -> None:
    start = EpochRecord.of_start().with_recall({1: 0.2, 5: 0.4, 10: 0.5})
    loss, recall = draw_training({"run": (start, *epochs(2, recall_1=0.3, recall_5=0.5, recall_10=0.6))}).axes
    assert list(loss.lines[0].get_xdata()) == [1, 2]
    assert list(recall.lines[0].get_xdata()) == [0, 1, 2]
    assert recall.get_xlim()[0] < 0


def test_recall_of_every_report_is_there_to_be_read() -> None:
    (axes,) = draw_recall({"sare": make_report(RECALL), "triplet": make_report({1: 50.0, 5: 70.0, 10: 75.0})}).axes
    lines = labelled(axes)
    np.testing.assert_array_equal(lines["sare"].get_data(), [[1, 5, 10], [60, 80, 90]])
    np.testing.assert_array_equal(lines["triplet"].get_ydata(), [50, 70, 75])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["sare", "triplet"]
    assert lines["sare"].get_linestyle() != lines["triplet"].get_linestyle()


def test_the_interval_stands_as_a_bar_at_the_first_n() -> None:
    (axes,) = draw_recall({"sare": make_report(RECALL, recall_at_1_interval=(52.0, 67.0))}).axes
    (bar,) = axes.collections
    np.testing.assert_allclose(np.sort(bar.get_segments()[0][:, 1]), [52, 67])


def test_one_n_is_one_marker() -> None:
    (axes,) = draw_recall({"sare": make_report({1: 60.0})}).axes
    np.testing.assert_array_equal(labelled(axes)["sare"].get_data(), [[1], [60]])


@pytest.mark.parametrize(
    ("draw", "complaint"),
    [
        (lambda: draw_recall({}), "no reports were given"),
        (lambda: draw_recall({"a": make_report({1: math.nan})}), r"recall of 'a' has nan"),
        (lambda: draw_precision_recall({}), "no curves were given"),
        (
            lambda: draw_precision_recall({"a": PrecisionRecallCurve.of_report(make_report(RECALL, curve=()))}),
            "no values",
        ),
        (lambda: draw_training({}), "no training runs"),
        (lambda: draw_training({"a": [EpochRecord(1, math.nan, 0.1, 1, 1, 1.0)]}), "loss of 'a' has nan"),
        (lambda: draw_training({"a": []}), "loss of 'a' has no values"),
        (
            lambda: draw_training({"a": [EpochRecord(1, 0.5, 0.1, 1, 1, 1.0, math.nan, 0.5, 0.6)]}),
            "recall@1 of 'a' has nan",
        ),
    ],
)
def test_nothing_to_draw_is_an_error(draw, complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        draw()


def test_the_operating_point_is_the_last_answer_sure_enough() -> None:
    curve = PrecisionRecallCurve.of_report(make_report(RECALL))
    assert curve.at(0.7) == curve.at(0.99) == (80.0, 50.0)
    assert curve.at(5) == (60.0, 70.0)
    with pytest.raises(ArgumentError, match=r"distance ≤ 0\.1"):
        curve.at(0.1)


def test_confidence_counts_the_other_way_round() -> None:
    curve = PrecisionRecallCurve.of_confidence(np.array([0.9, 0.8, 0.3, np.nan]), [True, False, True, True])
    assert curve.at(0.85) == (100, 25)
    assert curve.at(0.8) == (50, 25)
    assert curve.at(0.0) == pytest.approx((200 / 3, 50))
    assert curve.condition(0.8) == "confidence ≥ 0.8"


def test_the_operating_point_is_ringed_and_labelled() -> None:
    (axes,) = draw_precision_recall({"sare": PrecisionRecallCurve.of_report(make_report(RECALL))}, at=0.7).axes
    rings = [line for line in axes.lines if line.get_markersize() == 12]
    assert [ring.get_xydata().tolist() for ring in rings] == [[[50, 80]]]
    legend = axes.get_legend()
    assert "≤ 0.7" in legend.get_title().get_text()
    assert all(share in legend.get_texts()[0].get_text() for share in ("sare", "80.0 %", "50.0 %"))


def test_training_rings_the_epoch_that_is_kept() -> None:
    history = (
        *epochs(4, recall_1=0.5, recall_5=0.8, recall_10=0.9),
        EpochRecord(5, 0.1, 0.001, 1, 1, 1.0, 0.1, 0.2, 0.3),
    )
    loss, recall = draw_training({"run": history}).axes
    np.testing.assert_allclose(labelled(loss)["run"].get_ydata(), [1, 1 / 2, 1 / 3, 1 / 4, 0.1])
    np.testing.assert_allclose(labelled(recall)["run"].get_ydata(), [8, 16, 24, 32, 20])
    (ring,) = [line for line in recall.lines if line.get_markersize() == 12]
    np.testing.assert_allclose(ring.get_xydata(), [[4, 32]])


def test_losses_of_different_kinds_share_a_log_axis() -> None:
    small = [EpochRecord(1, 0.01, 0.001, 10, 120, 1.0), EpochRecord(2, 0.008, 0.001, 10, 120, 1.0)]
    (axes,) = draw_training({"sare": epochs(2), "triplet": small}).axes
    assert axes.get_yscale() == "symlog"
    np.testing.assert_allclose(labelled(axes)["triplet"].get_ydata(), [0.01, 0.008])
    (alone,) = draw_training({"triplet": small}).axes
    assert alone.get_yscale() == "linear"
    (with_zero,) = draw_training({"sare": epochs(2), "zero": [EpochRecord(1, 0.0, 0.1, 1, 1, 1.0)], "low": small}).axes
    assert with_zero.get_ylim()[0] == 0  # a loss of nothing has its place
    assert np.isfinite(with_zero.transData.transform((1, 0.0))).all()


def test_runs_without_validation_show_their_loss_alone() -> None:
    assert len(draw_training({"run": epochs(1)}).axes) == 1


def test_a_report_survives_its_file(tmp_path: Path) -> None:
    report = make_report(RECALL, failures={"database": (("a.jpg", "empty"),), "queries": ()}, model="little", dim=64)
    (tmp_path / "r.json").write_text(json.dumps(report.to_json()))
    assert read_report(tmp_path / "r.json") == report


def test_a_report_of_a_later_version_is_still_read(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps(make_report(RECALL).to_json() | {"something_new": 1}))
    assert read_report(tmp_path / "r.json").curve[0] == CurvePoint(0.4, 100.0, 25.0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "cannot be read as a report"),
        ("[1]", "found list"),
        ('{"recall": {"1": NaN}}', "NaN"),
        ('{"recall": {}}', "missing curve, database"),
        ("wrong recall", "not a report"),
    ],
)
def test_what_is_no_report_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    broken = json.dumps(make_report(RECALL).to_json() | {"recall": {"one": 3}}) if text == "wrong recall" else text
    (tmp_path / "r.json").write_text(broken)
    with pytest.raises(ArgumentError, match=complaint):
        read_report(tmp_path / "r.json")


def test_a_missing_report_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"nowhere\.json"):
        read_report(tmp_path / "nowhere.json")


def test_a_history_is_what_the_run_folder_wrote(tmp_path: Path) -> None:
    history = epochs(3, recall_1=0.5, recall_5=0.8, recall_10=0.9)
    RunFolder(tmp_path).save(RunState({}, history), {})
    assert read_history(tmp_path) == read_history(tmp_path / "history.csv") == history


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("epoch,loss\n1,x\n", "cannot be read as the history"), (None, "give the folder that sareloc train"),
     ("epoch,loss,lr,tuples,images,seconds,recall_1,recall_5,recall_10\n", "no epoch")],
)  # fmt: skip
def test_what_is_no_history_is_refused(text: str | None, complaint: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "history.csv").write_text(text)
    with pytest.raises(ArgumentError, match=complaint):
        read_history(tmp_path)
