"""The tables of the UAI competition from rows."""

from __future__ import annotations

import pytest

from potentia_studies import competition


def row(problem: str, task: str = "PR", **facts: object) -> dict:
    return {"cell": {"task": task, "problem": problem, "method": "anytime"}, "entrants": {}, **facts}


def test_means_are_of_the_problems_that_have_a_score() -> None:
    rows = [
        row("a", value=1.0, score=100.0, error=0.0, exact=True, mar_score=90.0, entrants={"one": 80.0, "two": 100.0}),
        row("b", value=2.0, score=50.0, error=1.0, lower=1.0, upper=3.0, entrants={"one": 60.0}),
        row("c", value=3.0, score=None, error=0.0, exact=True, entrants={"one": 0.0}),
        row("d", "MMAP", value=-9.0, score=70.0, error=3.0, bound=-8.0, as_printed={"value": -7.0, "score": 98.0}),
    ]
    means, partition, marginals, query = competition.tables(rows)
    assert [line["score"] for line in means.lines] == [75.0, 90.0, 98.0]
    assert means.lines[0]["entrants"] == "two 100.0 (1), one 70.0 (2)"
    assert means.lines[0]["matched"] == "1 of 1"
    assert [line["bounds"] for line in partition.lines] == ["exact", "1.0 to 3.0", "exact"]
    assert len(marginals.lines) == 1
    assert query.lines[0]["value"] == -7.0


def test_scores_follow_the_formula() -> None:
    assert competition.score(1.0, "4.0") == pytest.approx(75.0)
    assert competition.score(9.0, "4.0") == 0.0
    assert competition.score(1.0, "") is None
