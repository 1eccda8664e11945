"""Tests of bench.fin_price: the price of `--sync-fin`."""

import pytest

from bench import fin_price
from bench.setting import Setting


@pytest.mark.slow
def test_each_load_is_consumed_with_and_without_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fin_price, "LOADS", ((1, 1, 200), (2, 10, 400)))
    lines = fin_price.measure(1, Setting())
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| 1 consumer, RDY 1", "| 2 consumers, RDY 10"]
    assert all(float(line.split(" | ")[3].rstrip(" |")) > 0 for line in lines[2:])
