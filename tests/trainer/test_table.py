"""Tables for job logs."""

from trainer.table import table


def test_numbers_are_aligned_right_and_text_left():
    text = table(("rank", "host", "GB/s"), [(0, "gpu-1", 1.5), (10, "gpu-12", 12.345)])
    assert text.splitlines() == [
        "rank  host     GB/s",
        "----  ------  -----",
        "   0  gpu-1    1.50",
        "  10  gpu-12  12.35",
    ]


def test_a_table_without_rows_has_only_headers():
    assert table(("a", "bc"), []).splitlines() == ["a  bc", "-  --"]
