"""Decodes quantised tensors, judges the answers of a quantiser, and finds why one is wrong.

    encoding = quantised("e2m1", block=(1, 16), scale="e4m3", second="float32", packed="low first", swizzle="128x4")
    parts = Parts(codes, scales, second)          # the tensors that a kernel returned
    encoding.decode(parts, (128, 64))             # the numbers that these bits mean, as float64
    found = judge(encoding, Value.of(x), parts)   # each block: right, at a tie, under another scale, or wrong
    causes(encoding, Value.of(x), parts)          # ["ties go up, the declaration says: even"]

`encoding` has the declaration, `rules` the reachable scales, `blocks` the judge. `causes` tries other rules.
"""

from verify.truth.quantised.blocks import Judged, Value, judge
from verify.truth.quantised.causes import causes
from verify.truth.quantised.encoding import Encoding, Parts, WrongForm, quantised

__all__ = ["Encoding", "Judged", "Parts", "Value", "WrongForm", "causes", "judge", "quantised"]
