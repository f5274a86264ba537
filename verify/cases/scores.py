"""Defines recipes for a softmax over products of queries and keys: inputs at which attention often goes wrong.

The operands of a case share one direction u, a vector of +1 and -1. Queries and keys are multiples of u plus small
random numbers, so that a recipe can choose their products, the scores. With the usual scale, one over the square root
of the number of features:

* scores below -87: every key has +2u. Every second query is -m u, where m is a power of two. Its scores are all near
  -128, -256, -512 or -1024, and the exponential of an unshifted score is 0. Queries and keys are numbers of
  float8_e4m3fn.
* rising maxima, falling maxima: the scores of a query rise (fall) from its first key to its last by 6, 12, 48 or 192. A
  mask may hide the largest score.
* sinks: the first key has a score of about 16, and a value near 0.
* repeated tokens: the last eighth of the keys and values repeats the first, so that maxima are ties. Equal keys have
  equal errors, which add up. With more of them, the noise of independent errors would be no measure.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from verify.cases.values import Stream
from verify.ops.op import ScorePart
from verify.truth.formats import Format, torch_dtype

Shape = tuple[int, ...]

_RISES = (6.0, 12.0, 48.0, 192.0)


@dataclass(frozen=True)
class _Tokens:
    """Holds the needs of a recipe: float64 numbers of one operand, in the shape (others, tokens, features)."""

    role: str
    shape: tuple[int, int, int]
    stream: Stream
    joint: Stream  # the same for all operands of a case

    def bell(self) -> Tensor:
        """Returns nearly normal numbers."""
        return self.stream.bell(math.prod(self.shape)).reshape(self.shape)

    def direction(self) -> Tensor:
        """Returns the vector u of +1 and -1."""
        return self.joint.below(self.shape[2], 2).double() * 2 - 1

    def along(self, factors: Tensor) -> Tensor:
        """Returns multiples of u, one for each token of each other index."""
        return factors[..., None] * self.direction()

    def turn(self) -> Tensor:
        """Returns the number of each token among all."""
        return torch.arange(self.shape[0] * self.shape[1], device=self.stream.device).reshape(self.shape[:2])


def _below(made: _Tokens) -> Tensor:
    if made.role == "key":
        return _in_8_bits(made.bell().clamp(-2, 2) / 2 + 2.0 * made.direction())
    if made.role == "value":
        return made.bell()
    turn = made.turn()
    least = 2.0 ** math.ceil(math.log2(64 / math.sqrt(made.shape[2])))
    factors = -(least * torch.bitwise_left_shift(torch.ones_like(turn), turn // 2 % 4).double()).clamp(max=256.0)
    return torch.where((turn % 2 == 0)[..., None], made.along(factors), _in_8_bits(made.bell() / 2))


def _in_8_bits(values: Tensor) -> Tensor:
    return values.to(torch.float8_e4m3fn).double()


def _rising(made: _Tokens, *, falling: bool = False) -> Tensor:
    if made.role == "value":
        return made.bell()
    if made.role == "key":
        place = (torch.arange(made.shape[1], device=made.stream.device).double() + 1) / max(made.shape[1], 1)
        factors = 2.0 * (place.flip(0) if falling else place).expand(made.shape[:2])
    else:
        rises = torch.tensor(_RISES, dtype=torch.float64, device=made.stream.device)
        factors = rises[made.turn() % len(_RISES)] / (2.0 * math.sqrt(made.shape[2]))
    return made.bell() / 8 + made.along(factors)


def _sinks(made: _Tokens) -> Tensor:
    values = made.bell() / 2
    if made.role == "query":
        return values + made.along(torch.full(made.shape[:2], 4.0 / math.sqrt(made.shape[2])).to(values))
    values[:, :1] = 4.0 * made.direction() if made.role == "key" else values[:, :1] / 64
    return values


def _repeated(made: _Tokens) -> Tensor:
    if made.role == "query":
        return made.bell()
    tokens = made.bell()
    few = made.shape[1] // 8
    return torch.cat([tokens[:, : made.shape[1] - few], tokens[:, :few]], 1)


RECIPES: dict[str, Callable[[_Tokens], Tensor]] = {
    "scores below -87": _below,
    "rising maxima": _rising,
    "falling maxima": lambda made: _rising(made, falling=True),
    "sinks": _sinks,
    "repeated tokens": _repeated,
}
# Numbers of keys: one, one more than whole blocks, half of a block of 128 beyond a whole one, whole blocks.
LENGTHS = (1, 33, 64, 128, 129, 192, 257)


def fill_scores(recipe: str, part: ScorePart, fmt: Format, shape: Shape, stream: Stream, joint: str) -> Tensor:
    """Fills a query, a key or a value. `joint` names the stream that all operands of one case share."""
    order = [axis for axis in range(len(shape)) if axis not in (part.tokens, part.features)]
    features = part.features if part.features >= 0 else order.pop() if order else -1
    last = [part.tokens] + ([features] if features >= 0 else [])
    sizes = [shape[axis] for axis in (*order, *last)]
    width = shape[features] if features >= 0 else 1
    others = math.prod(shape[axis] for axis in order)
    wanted = _Tokens(part.role, (others, shape[part.tokens], width), stream, replace(stream, name=joint))
    made = RECIPES[recipe](wanted)
    limit = float(fmt.max_finite)
    whole = made.clamp(-limit, limit).reshape(sizes)
    back = [(*order, *last).index(axis) for axis in range(len(shape))]
    return whole.permute(back).to(torch_dtype(fmt)).contiguous()
