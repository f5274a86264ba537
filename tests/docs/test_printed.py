"""What is compared of a page on a processor whose PyTorch has other figures."""

from __future__ import annotations

import pytest

from tests.docs.printed import rows

TABLE = """\
kernel   output  dtype     max ULP  PyTorch  verdict
my_gelu  dx      bfloat16    238.8    {}  ✗ wrong
why      238.8 ULP, the limit is 4
"""


def test_figures_of_pytorch_are_left_out_and_ours_are_not() -> None:
    page, here = TABLE.format("255.3"), TABLE.format(" 7.52")
    assert rows(page, peer=False) == rows(here, peer=False)
    assert rows(page, peer=False)[1] == ("my_gelu", "dx", "bfloat16", "238.8", "✗ wrong")
    assert rows(page, peer=True) != rows(here, peer=True)
    assert rows(page, peer=False) != rows(here.replace("bfloat16    238.8", "bfloat16    238.9"), peer=False)


@pytest.mark.parametrize("peer", [False, True])
def test_lines_that_are_no_row_stay_whole(peer: bool) -> None:
    assert rows(TABLE.format("255.3"), peer=peer)[2] == ("why", "238.8 ULP, the limit is 4")
