"""Finds the structure of a problem's inputs, such as a triangular matrix, and gives it to other numbers.

    names = found_in([get_inputs()[0] for _ in range(3)])    ("upper triangular",)
    kept(torch.randn(4, 4), names, like)                     an upper triangular matrix

A structure that holds for every sample is what the problem means, so a solution may rely on it. ROWS is the table: a
structure by its name has a test of one sample, and a projection that moves other numbers onto it. A projection may read
a sample, `like`: the numbers that occur there, the places of its zeros.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FEW = 8  # different numbers: with more of them they are no labels or masks
REPEATED = 4  # times that each of them occurs on average
PROBED = 4096  # elements that tell whether a tensor has few different numbers
ROUNDED = 64  # units in the last place within which sums are 1 and norms are 1
LARGEST_MATRIX = 2048  # beside which a test for positive definiteness takes too long
_STEP = 2_654_435_761  # a prime
WHOLE = 1 << 24  # beyond which float32 has no odd numbers


@dataclass(frozen=True)
class Structure:
    """Says whether a sample has a structure, and gives it to another tensor.

    `exact`: only certain numbers occur, and drawing from a sample's own numbers keeps it.
    `zeros`: a place is zero by its indices.
    """

    holds: Callable[[Tensor], bool]
    project: Callable[[Tensor, Tensor], Tensor]
    exact: bool = False
    zeros: bool = False


def found_in(samples: Sequence[Tensor]) -> tuple[str, ...]:
    """Returns the names of the structures that every sample has, in the order of the table.

    An argument with few numbers that is the same in every sample, as a causal mask, is "constant".
    """
    first, *others = samples
    if first.is_complex() or first.numel() < 2 or first.dtype == torch.bool:
        return ()
    same = bool(others) and all(torch.equal(first, each) for each in others)
    if same and _has_few(first):
        return ("constant",)
    if not first.is_floating_point() or not bool(torch.isfinite(first).all()):
        return ()
    names = [name for name, row in ROWS.items() if all(row.holds(each.detach()) for each in samples)]
    if "one-hot" in names:
        return ("one-hot",)
    for stronger, weaker in (("few numbers", "whole numbers"), ("positive definite", "symmetric")):
        if stronger in names and weaker in names:
            names.remove(weaker)
    zeros = [each == 0 for each in samples] if others and not same and not without_zeros(names) else []
    if zeros and bool(zeros[0].any()) and all(torch.equal(zeros[0], each) for each in zeros):
        names.append("zeros at the same places")
    lines = [name for name in names if name.startswith(("unit vectors", "probabilities"))]
    return tuple(name for name in names if name not in lines[1:])


def kept(value: Tensor, names: Sequence[str], like: Tensor) -> Tensor:
    """Returns a tensor with these structures, near the given one."""
    for name in names:
        if name == "constant":
            return like.to(value.device, value.dtype) if like.shape == value.shape else _few(value, like)
        value = ROWS[name].project(value, like)
    return value


def without_zeros(names: Sequence[str]) -> bool:
    """True if a structure has its zeros by their places, so that the other numbers need none."""
    return any(name in ROWS and ROWS[name].zeros for name in names)


def _numbers(value: Tensor) -> Tensor:
    """Returns the different numbers of a tensor, if they are few; an empty tensor if they are more."""
    flat = value.reshape(-1)
    # by a step that no size divides: of a matrix, one column would tell nothing
    some = torch.arange(min(PROBED, flat.numel()), device=flat.device) * _STEP % flat.numel()
    numbers = torch.unique(flat[some])
    few = len(numbers) <= FEW and bool(torch.isin(flat, numbers).all())
    found: Tensor = numbers if few else numbers[:0]
    return found


def _has_few(value: Tensor) -> bool:
    count = len(_numbers(value)) if value.numel() else 0
    return count >= 2 and value.numel() >= REPEATED * count


def _are_whole(value: Tensor) -> bool:
    return all(bool((each == each.round()).all()) for each in (value.reshape(-1)[:PROBED], value)) and bool(
        (value.abs().max() <= WHOLE) & (value.min() < value.max())
    )


def _are_ranked(value: Tensor, count: int) -> Tensor:
    """Returns a number from 0 to `count` - 1 for each element, by its rank: each number occurs as often."""
    flat = value.reshape(-1)
    places = torch.empty(flat.numel(), dtype=torch.int64, device=flat.device)
    places[torch.argsort(flat, stable=True)] = torch.arange(flat.numel(), device=flat.device)
    return (places * count // max(flat.numel(), 1)).reshape(value.shape)


def _few(value: Tensor, like: Tensor) -> Tensor:
    numbers = _numbers(like).to(value.device, value.dtype)
    found: Tensor = numbers[_are_ranked(value, numbers.numel())]
    return found


def _whole(value: Tensor, like: Tensor) -> Tensor:
    low, high = int(like.min()), int(like.max())
    return (_are_ranked(value, high - low + 1) + low).to(value.dtype)


def _without(value: Tensor, like: Tensor) -> Tensor:
    return value.masked_fill(like.to(value.device) == 0, 0) if value.shape == like.shape else value


def _one_hot(value: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(value).scatter_(-1, value.argmax(-1, keepdim=True), 1)


def _matrix(test: Callable[[Tensor], bool], *, square: bool = False) -> Callable[[Tensor], bool]:
    """Returns a test of matrices that are not zero. Most fail in a corner, which takes no time."""

    def holds(value: Tensor) -> bool:
        sizes = value.shape[-2:]
        if len(sizes) < 2 or min(sizes) < 2 or (square and sizes[0] != sizes[1]):
            return False
        return test(value[..., :64, :64]) and bool(value.any()) and test(value)

    return holds


def _mirrored(value: Tensor, like: Tensor | None = None) -> Tensor:
    return value.triu() + value.triu(1).mT


def _is_symmetric(value: Tensor) -> bool:
    return torch.equal(value, value.mT)


def _is_definite(value: Tensor) -> bool:
    if not _is_symmetric(value) or value.shape[-1] > LARGEST_MATRIX or torch.equal(value, value.triu()):
        return False
    return not bool(torch.linalg.cholesky_ex(value.double()).info.any())


def _dominated(value: Tensor, like: Tensor) -> Tensor:
    """Returns a symmetric matrix whose diagonal is larger than the rest of its row: it is positive definite."""
    mirrored = _mirrored(value)
    beside = mirrored.abs().sum(-1)
    return torch.diagonal_scatter(mirrored, torch.where(beside > 0, 1.5 * beside, 1), dim1=-2, dim2=-1)


def _are_sorted(value: Tensor) -> bool:
    if value.shape[-1] < 4 or not all(bool((each.diff() >= 0).all()) for each in (value[..., :64], value)):
        return False
    return bool((value[..., :1] < value[..., -1:]).all())


def _along(dim: int, of: Callable[[Tensor], Tensor]) -> Callable[[Tensor], bool]:
    """Returns a test whether the sum of `of` each number is 1 along a dimension."""

    def holds(value: Tensor) -> bool:
        if value.ndim < -dim or value.shape[dim] < 2 or _has_few(value):
            return False
        some = value[..., :8] if dim < -1 else value.reshape(-1, value.shape[-1])[:8]  # of many, a few tell at once
        parts = (of(each.double()).sum(dim) - 1 for each in (some, value))
        return all(bool((apart.abs() <= ROUNDED * torch.finfo(value.dtype).eps).all()) for apart in parts)

    return holds


def _unit(dim: int) -> Callable[[Tensor, Tensor], Tensor]:
    def project(value: Tensor, like: Tensor) -> Tensor:
        wide = value.double()
        wide = torch.where(wide.abs().amax(dim, keepdim=True) > 0, wide, 1.0)
        wide = wide / wide.abs().amax(dim, keepdim=True)
        return torch.nn.functional.normalize(wide, dim=dim).to(value.dtype)

    return project


def _shares(dim: int) -> Callable[[Tensor, Tensor], Tensor]:
    def project(value: Tensor, like: Tensor) -> Tensor:
        wide = value.double().abs()
        wide = wide / wide.amax(dim, keepdim=True).clamp_min(1e-300)
        if bool((like > 0).all()):
            wide = wide.clamp_min(2.0**-16)
        return (wide / wide.sum(dim, keepdim=True)).to(value.dtype)

    return project


def _not_negative(value: Tensor) -> Tensor:
    return torch.where(value < 0, torch.nan, value)


ROWS: dict[str, Structure] = {
    "one-hot": Structure(
        lambda x: x.ndim > 1 and _numbers(x).tolist() == [0, 1] and bool((x.sum(-1) == 1).all()), _one_hot
    ),
    "few numbers": Structure(_has_few, _few, exact=True),
    "whole numbers": Structure(_are_whole, _whole, exact=True),
    "positive definite": Structure(_matrix(_is_definite, square=True), _dominated),
    "symmetric": Structure(_matrix(_is_symmetric, square=True), _mirrored),
    "upper triangular": Structure(_matrix(lambda x: torch.equal(x, x.triu())), lambda x, like: x.triu(), zeros=True),
    "lower triangular": Structure(_matrix(lambda x: torch.equal(x, x.tril())), lambda x, like: x.tril(), zeros=True),
    "zeros at the same places": Structure(lambda x: False, _without, zeros=True),  # `found_in` compares samples
    "rising": Structure(_are_sorted, lambda x, like: x.sort(-1).values),
    "falling": Structure(lambda x: _are_sorted(-x), lambda x, like: x.sort(-1, descending=True).values),
    **{f"unit vectors along {dim}": Structure(_along(dim, torch.square), _unit(dim)) for dim in (-1, -2, -3)},
    **{f"probabilities along {dim}": Structure(_along(dim, _not_negative), _shares(dim)) for dim in (-1, -2, -3)},
}
OF_ALL = ("constant", "symmetric", "positive definite", "zeros at the same places")  # with more rows they are others
EXACT = {name for name, row in ROWS.items() if row.exact}
