"""Proves the quantisers of examples/quantisers.py: every decoding, every scale that amax gives, every rounding.

    python -m benchmarks.quantisers                     all of them, in a minute on a CPU
    python -m benchmarks.quantisers mxfp8 nvfp4 --device cuda
    python -m benchmarks.quantisers --all-float32 --device cuda     the scale of every amax of float32
    python -m benchmarks.quantisers --all-float32 --first 3f800000 --count 65536    of some of them
    python -m benchmarks.quantisers --json PATH         figures to a file

*decode* is what the dequantiser makes of each code with each scale, to the bit of float32. *scales* and *codes* are the
block maxima and the elements of bfloat16 that were tried, all of them where the table says so. With a second scale
that is every amax from 2^-100 up, beside maxima of the tensor that are up to 2^16 times larger. The exit code is 0 if
nothing is wrong and at least 12 quantisers were tried with every scale and every decoding, else 1.

`--all-float32` tries the quantisers whose scale follows from amax alone, in blocks of at most 128 elements: each of the
2,139,095,039 magnitudes of float32 is the largest of a block, with either sign, and only the scales are judged.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import torch

from examples import quantisers
from verify.cases.blocks import block_cases, filled
from verify.declare.declaration import Kernel
from verify.truth.codes import code_format
from verify.truth.formats import named
from verify.truth.quantised import Encoding, Parts, Value, causes, judge
from verify.truth.quantised.encoding import FLOATS
from verify.truth.quantised.rules import reach

LEAST = 12
MAGNITUDES = 0x7F7F_FFFF  # of float32, without 0
_SMALL_BLOCK = 128  # elements
_SCALES = 1 << 12  # float32 scales that each code is decoded with


def decoded(encoding: Encoding, device: str) -> tuple[int, int, bool]:
    """How many pairs of code and scale were decoded, how many of them wrong, and whether these are all."""
    if encoding.scale == "float32":
        bits = torch.arange(_SCALES) * (0x7F80_0000 // _SCALES)
        scales = bits.to(torch.int32).view(torch.float32)
    elif encoding.scale in FLOATS:
        scales = torch.arange(1 << 16).to(torch.int16).view(FLOATS[encoding.scale]).float()
    else:
        scales = quantisers.scale_of(torch.arange(256).to(torch.uint8), code_format(encoding.scale).name[:4])
    codes = torch.arange(1 << encoding.data.bits).to(torch.uint8)
    name = {"e4m3fn": "e4m3"}.get(encoding.data.name, encoding.data.name)
    got = (quantisers.float_of(codes.to(device), name)[:, None] * scales.to(device)).cpu()
    held = scales.double() if encoding.scale in FLOATS else code_format(encoding.scale).tensor("table")
    wanted = (encoding.data.tensor("table")[:, None] * held).float()
    wrong = (
        ~((got == wanted) | (got.isnan() & wanted.isnan()))
        | (torch.signbit(got) != torch.signbit(wanted)) & ~got.isnan()
    )
    return got.numel(), int(wrong.sum()), encoding.scale != "float32"


def scales_of_float32(
    kernel: Kernel, encoding: Encoding, device: str, first: int, count: int, chunk: int
) -> dict[str, Any]:
    """Tries float32 magnitudes, by their bits from `first` on, as the largest of a block each."""
    started = time.perf_counter()
    columns = encoding.block[1]
    found = {
        "quantiser": kernel.name,
        "float32 scales": count,
        "float32 other": 0,
        "float32 wrong": 0,
        "first wrong": "",
    }
    place = torch.arange(chunk, device=device)
    for start in range(first, first + count, chunk):
        bits = start + place[: first + count - start]
        amax = bits.to(torch.int32).view(torch.float32)
        x = torch.zeros(len(bits), columns, device=device)
        x.scatter_(1, (bits % columns)[:, None], torch.where(bits % 3 == 0, -amax, amax)[:, None])
        parts = Parts(**dict(zip(encoding.names, kernel(x), strict=True)))
        scale = encoding.scales_of(parts, (len(bits), columns)).reshape(-1)
        wide = amax.double()
        wanted = reach(encoding, wide, wide, torch.ones((), dtype=torch.float64, device=device))
        wrong = ~((scale >= wanted.low) & (scale <= wanted.high))
        found["float32 wrong"] += int(wrong.sum())
        found["float32 other"] += int((scale != wanted.nominal).sum()) - int(wrong.sum())
        if bool(wrong.any()) and not found["first wrong"]:
            at = int(torch.nonzero(wrong)[0])
            found["first wrong"] = (
                f"amax {float(amax[at]).hex()}: {float(scale[at]):g}, not {float(wanted.nominal[at]):g}"
            )
    return found | {"seconds": round(time.perf_counter() - started, 2)}


def has_scale_of_amax(encoding: Encoding) -> bool:
    """Whether amax of a small block alone decides its scale."""
    plain = not encoding.second and not encoding.zero_point and not encoding.swizzle
    return plain and encoding.block[0] == 1 and 0 < encoding.block[1] <= _SMALL_BLOCK


def all_float32(kernels: list[Kernel], device: str, first: int, count: int, chunk: int) -> list[dict[str, Any]]:
    """Prints a line for each quantiser with the float32 magnitudes that it was tried with."""
    rows, last = [], MAGNITUDES + 1
    for kernel in kernels:
        assert kernel.encoding is not None
        row = scales_of_float32(kernel, kernel.encoding, device, first, min(count, last - first), chunk)
        shown = "all" if (row["float32 scales"], first) == (MAGNITUDES, 1) else "seen"
        print(
            f"{row['quantiser']:12}  {shown} {row['float32 scales']:,} float32 scales  {row['float32 other']:,} under "
            f"another scale  {row['float32 wrong']:,} wrong  {row['seconds']:g} s  {row['first wrong']}",
            flush=True,
        )
        rows.append(row)
    return rows


def proved(kernel: Kernel, encoding: Encoding, device: str) -> dict[str, Any]:
    """The figures of one quantiser."""
    started = time.perf_counter()
    pairs, wrong, every = decoded(encoding, device)
    found: dict[str, Any] = {"quantiser": kernel.name, "decode": pairs, "decode all": every, "decode wrong": wrong}
    fmt = named("bfloat16")
    for kind, name in (("scales", "scales"), ("rounding", "codes")):
        tried, blocks, bad, all_of_them, why = 0, 0, 0, True, ""
        for case in block_cases(encoding, fmt, kernel.allows):
            if case.kind == kind:
                x = filled(case.fill, fmt, case.dims).to(device)
                parts = Parts(**dict(zip(encoding.names, kernel(x), strict=True)))
                judged = judge(encoding, Value.of(x), parts)
                tried, blocks, bad = tried + case.tried, blocks + judged.kinds.numel(), bad + judged.wrong
                all_of_them = all_of_them and case.everything
                if judged.wrong and not why:
                    held = {name: getattr(parts, name).cpu() for name in encoding.names}
                    why = "; ".join(causes(encoding, Value.of(x.cpu()), Parts(**held)))
        found |= {
            name: tried,
            f"{name} all": all_of_them,
            f"{name} blocks": blocks,
            f"{name} wrong": bad,
            f"{name} why": why,
        }
    return found | {"seconds": round(time.perf_counter() - started, 2)}


def of_table(row: dict[str, Any]) -> str:
    """One line: `mxfp8  all 65,536 decoded  all 32,639 scales  all 34,816 codes  0 wrong  1.2 s`."""
    shown = [
        f"{'all' if row[f'{name} all'] else 'seen'} {row[name]:,} {name}" for name in ("decode", "scales", "codes")
    ]
    wrong = row["decode wrong"] + row["scales wrong"] + row["codes wrong"]
    why = row["scales why"] or row["codes why"]
    return "  ".join(
        [f"{row['quantiser']:12}", *(f"{each:20}" for each in shown), f"{wrong:,} wrong", f"{row['seconds']:g} s", why]
    )


def written(path: Path, rows: list[dict[str, Any]], device: str) -> None:
    """Writes the figures to a file, with the device and the version of PyTorch."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    held = {"device": name, "torch": str(torch.__version__), "figures": rows}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(held), indent=1))


def main(arguments: list[str]) -> int:
    """Prints a line for each quantiser and the verdict; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="quantisers of examples/quantisers.py; all without any")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", metavar="PATH")
    parser.add_argument("--all-float32", action="store_true", help="the scale of every amax of float32")
    parser.add_argument(
        "--first", type=lambda text: int(text, 16), default=1, help="the bits of the first amax, in hex"
    )
    parser.add_argument("--count", type=int, default=MAGNITUDES, help="how many of them")
    parser.add_argument("--chunk", type=int, default=1 << 22, help="blocks in memory at a time")
    options = parser.parse_args(arguments)
    declared = [each for each in vars(quantisers).values() if isinstance(each, Kernel) and each.encoding]
    known = {each.name: each for each in declared if not each.encoding.random}
    if unknown := set(options.names) - set(known):
        parser.error(f"unknown {', '.join(sorted(unknown))}; the quantisers are {', '.join(known)}")
    if options.all_float32:
        kernels = [known[name] for name in options.names or known if has_scale_of_amax(known[name].encoding)]
        rows = all_float32(kernels, options.device, options.first, options.count, options.chunk)
        wrong = [row["quantiser"] for row in rows if row["float32 wrong"]]
        if options.json:
            written(Path(options.json), rows, options.device)
        verdict = "nothing is wrong" if not wrong else f"wrong: {', '.join(wrong)}"
        print(f"{len(rows)} quantisers in {sum(row['seconds'] for row in rows):.0f} s; {verdict}")
        return 0 if rows and not wrong else 1
    rows = []
    for name in options.names or known:
        kernel = known[name]
        assert kernel.encoding is not None
        rows.append(proved(kernel, kernel.encoding, options.device))
        print(of_table(rows[-1]), flush=True)
    wrong = [row["quantiser"] for row in rows if any(row[f"{name} wrong"] for name in ("decode", "scales", "codes"))]
    whole = sum(1 for row in rows if row["decode all"] and row["scales all"])
    tried = sum(1 for row in rows if row["scales all"])
    seconds = sum(row["seconds"] for row in rows)
    if options.json:
        written(Path(options.json), rows, options.device)
    enough = whole >= LEAST or bool(options.names)
    verdict = "nothing is wrong" if not wrong else f"wrong: {', '.join(wrong)}"
    counted = f"{tried} with every scale, {whole} of them with every decoding"
    print(f"{len(rows)} quantisers in {seconds:.0f} s; {counted}; {verdict}")
    if not enough:
        print(f"at least {LEAST} quantisers have to be tried with every scale and every decoding")
    return 0 if enough and not wrong else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
