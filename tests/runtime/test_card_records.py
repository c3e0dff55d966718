"""What was measured on cards, in the cache. That plans use it: tests/engines/plan/test_machine.py."""

import pytest

from torchmdx.runtime import card_records


@pytest.mark.parametrize("text", ["", "[]", '{"NVIDIA GH200": 3}', '{"NVIDIA GH200": {"clusters": "many"}}'])
def test_a_damaged_record_of_cards_is_none(monkeypatch, tmp_path, text):
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path))
    (tmp_path / "cards.json").write_text(text)
    assert card_records.clusters_of("NVIDIA GH200", 114) == 0
    card_records.keep_clusters("NVIDIA GH200", 114, 13)
    assert card_records.clusters_of("NVIDIA GH200", 114) == 13


def test_a_process_that_tests_a_card_goes_by_its_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path))
    monkeypatch.setenv(card_records.ON_TRIAL, "9")
    assert card_records.clusters_of("NVIDIA H20", 78) == 9
    monkeypatch.delenv(card_records.ON_TRIAL)
    assert card_records.clusters_of("NVIDIA H20", 78) == 0
