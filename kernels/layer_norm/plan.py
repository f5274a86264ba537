"""Plans: which kernels a call runs, and with which options. Pure functions make them from sizes and dtypes.

>>> call = Call(rows=4096, columns=4096, x=torch.bfloat16, weight=torch.bfloat16, bias=torch.bfloat16)
>>> forward_plan(call).path
'fast'

The paths, with the modules that explain their roundings:

    fast     16-bit rows of up to 8,192 columns (forward: 16,384), float32 arithmetic    forward.py, backward.py
    rows     several rows a program: short rows of x alone; gated and FP8 RMS norm         rows.py
    exact    other rows, up to 4,096 columns (forward: 16,384), float64 arithmetic        forward.py, backward.py
    paired   float32 rows of 4,097 to 8,192 columns, backward only                        backward_paired.py
    long     longer rows of up to 16,384 columns, backward only, float64 arithmetic       backward.py
    wide     float64 and longer rows, block by block, pairs of float64                    forward_blocks.py, backward.py

Each choice that decides the order of a sum depends on the call alone, not on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

# Number of programs that an H200 holds at once (rows of up to 1,024 columns in 16 bits). A constant, so results do not
# depend on the device.
PROGRAMS = 1056
# Of the paired kernel: the same number; how many rows one program sums in float32; and the least number of rows that it
# sums so. With few terms, the rounding of xhat would show in dweight (2 ULP).
PAIRED_PROGRAMS, PAIRED_SUM, PAIRED_ROWS = 132, 64, 512
LONGEST = 16_384  # columns of a row that a program has in registers


@dataclass(frozen=True)
class Call:
    """The sizes and dtypes of a call; the dtype of an absent operand is None."""

    rows: int
    columns: int
    x: torch.dtype
    residual: torch.dtype | None = None
    input_bias: torch.dtype | None = None
    weight: torch.dtype | None = None
    bias: torch.dtype | None = None
    # backward pass: dtypes of the upstream gradients of y and s, and the column sums that are needed
    dy: torch.dtype | None = None
    ds: torch.dtype | None = None
    need_weight: bool = False
    need_bias: bool = False
    need_input_bias: bool = False
    centre: bool = True  # layer norm; False: RMS norm, whose rows are never marked, because it subtracts no mean
    gated: bool = False  # RMS norm times silu(gate): rows.py
    quantised: bool = False  # RMS norm to FP8: rows.py
    offset: bool = False  # the weight's factor is 1 + weight, which float32 does not hold

    @property
    def block(self) -> int:
        """Returns the columns rounded up to a power of two."""
        return triton.next_power_of_2(self.columns)

    @property
    def plain(self) -> bool:
        """True if x is the only operand."""
        return self.residual is None and self.input_bias is None

    @property
    def short(self) -> bool:
        """True if rows are as long as a head of attention, and x is the only operand."""
        return self.plain and not self.wide and 64 <= self.columns <= 256 and self.columns % 16 == 0

    @property
    def light(self) -> bool:
        """True for RMS norm of 16-bit rows without a sum. Its statistics are float32."""
        return not self.centre and self.plain and not self.wide and _are_half(self.x, self.weight, self.bias)

    @property
    def wide(self) -> bool:
        """True if x, residual or input_bias is float64, or the row too long for registers."""
        return torch.float64 in (self.x, self.residual, self.input_bias) or self.columns > LONGEST

    @property
    def kinds(self) -> int:
        """Returns the number of kinds of column sums that are needed."""
        return self.need_weight + self.need_bias + self.need_input_bias


def _are_half(*dtypes: torch.dtype | None) -> bool:
    return all(dtype in (None, torch.float16, torch.bfloat16) for dtype in dtypes)


@dataclass(frozen=True)
class ForwardPlan:
    """The kernel and options of a forward pass."""

    path: str  # rows, fast, exact, wide
    block: int  # columns in registers at once: the row, or less if wide
    warps: int
    maxnreg: int | None = None  # registers of a thread at most
    mark: bool = False  # fast, backward pass adds in float64: mark rows, or (RMS norm) square both parts
    packed: bool = False  # fast: two bfloat16 numbers share a register until they are needed
    early: bool = False  # fast: weight and bias are loaded before the sums
    again: int = 0  # exact: x is converted twice (2), or read twice too, the second time from L1 (1)
    rows: int = 1  # rows of a program
    fast: bool = False  # rows: float32 arithmetic


def forward_plan(call: Call) -> ForwardPlan:
    """Returns the plan of the forward pass."""
    block, n, residual = call.block, call.columns, call.residual is not None
    if call.wide:
        return ForwardPlan("wide", min(block, 2048), 8)
    fast = _are_half(call.x, call.weight, call.bias) and not call.quantised
    heads = (call.short or (call.plain and n == 512)) and (fast or not call.centre)
    if call.gated or call.quantised or heads:
        rows = max(1, (512 if call.gated and not fast else 1024) // block)
        share = 256 if not fast else 512 if block > 1024 else 1024
        warps = max(1, min(16, rows * block // share))
        limit = 64 if call.light and block <= 1024 else None
        return ForwardPlan("rows", block, warps, limit, rows=rows, fast=fast)
    half = _are_half(call.x, call.residual, call.input_bias) and torch.float64 not in (call.weight, call.bias)
    if half:
        share = 512 if residual or (fast and block <= (4096 if call.light else 2048)) else 1024
        # Rows that leave registers free. Layer norm of 4,096 columns would load weight and bias late with 64 of them.
        free = call.rows * block <= 1 << 20 or (fast and call.centre and block == 4096)
        operands = (call.x, call.residual, call.input_bias, call.weight, call.bias)
        return ForwardPlan(
            "fast",
            block,
            warps=max(1, min(16, block // share)),
            # 64 registers give a quarter more rows in flight than the 79 that the compiler would use
            maxnreg=64 if residual or (block >= 1024 and (share == 512 or not free)) else None,
            mark=not _are_half(call.weight, call.bias) or (call.centre and block > 8192),
            packed=block == n >= 2048 and residual and all(dtype in (None, torch.bfloat16) for dtype in operands),
            early=call.plain and (share == 512 or free),
        )
    if residual and block <= 4096:
        warps, maxnreg = max(1, block // (256 if call.input_bias is None else 512)), 64
    elif call.plain and block == n >= 1024:
        # float64 fills the registers, so fewer rows would wait for each other: rows are converted twice. From 8,192
        # columns on they are read twice too. Few rows do not fill the GPU.
        again = 1 if n >= 8192 else 2 if call.x == torch.float32 and call.rows * n > 1 << 21 else 0
        return ForwardPlan(
            "exact", block, min(16, n // 512), maxnreg=64 if n > 8192 or again == 2 else None, again=again
        )
    else:
        warps, maxnreg = max(1 if block < 1024 else 2, min(16, block // 1024)), None
    return ForwardPlan("exact", block, warps, maxnreg)


@dataclass(frozen=True)
class BackwardPlan:
    """The kernels and options of a backward pass."""

    path: str  # rows, fast, exact, paired, long, wide
    block: int  # columns of a program; of each of its 8 parts if paired
    blocks: int  # programs that share a row
    programs: int  # number; each sums the columns over its own rows
    warps: int
    ahead: int  # next rows in flight: 0 none, 1 one in registers, k > 1: k - 1 in shared memory
    maxnreg: int | None  # registers of a thread at most
    redo: str  # who redoes hard rows: never, inside (the kernel itself), after (a second kernel)
    marked: bool  # only rows marked by the forward pass can be hard
    separate_sums: bool  # c1 and c2 have their own memory
    top: int  # fast: float32 is enough for rows with rstd |g| < 2^top
    float16: bool  # some column sums may be float16
    lift: int  # the partial sums of dweight are multiplied by 2^lift
    column_block: int  # columns and programs at once when partial sums are added
    column_depth: int
    rows: int = 1  # rows of a program at once
    fast: bool = False  # float32 arithmetic and partial sums
    few: bool = False  # paired: dweight in float64

    @property
    def whole(self) -> bool:
        """True if a program has the whole row and computes c1 and c2 itself."""
        return self.path in ("fast", "exact")


def _backward_path(call: Call) -> str:
    block = call.block
    if call.wide:
        return "wide"
    if call.gated or (call.short and (call.light or block < 128 or not _are_half(call.x, call.weight, call.bias))):
        return "rows"
    if block <= 8192 and _are_half(call.x, call.residual, call.input_bias, call.weight, call.bias):
        return "fast"
    if block <= 4096:
        return "exact"
    float32 = all(dtype in (None, torch.float32) for dtype in (call.x, call.weight, call.bias)) and not call.offset
    if call.plain and block <= 8192 and call.ds is None and float32:
        return "paired"
    return "long"


def _tile(call: Call) -> tuple[int, int]:
    """Returns the rows of a program at once and its warps on the path "rows"."""
    if call.gated:
        if _are_half(call.x, call.weight):
            return max(1, 1024 // call.block), 16 if call.block > 1024 else 2
        return max(1, 512 // call.block), 8
    return 1024 // call.block, 4 if call.block < 128 and not call.light else 2


def _programs_and_warps(call: Call, path: str) -> tuple[int, int]:
    """Returns (programs, warps), before the programs are limited to the number of rows."""
    m, n, block, plain = call.rows, call.columns, call.block, call.plain
    aligned = n % 16 == 0  # strides and addresses are aligned too: see launch.as_rows
    if path == "rows":
        rows, warps = _tile(call)
        most = PROGRAMS // 2 * 1024 // max(block, 1024)
        if call.light:
            most = max(most, triton.cdiv(m, 1024 * rows))
        elif block < 128:
            most = PROGRAMS // 4
        return min(triton.cdiv(m, rows), most if call.kinds else m), warps
    if path == "paired":
        return PAIRED_PROGRAMS * triton.cdiv(m, PAIRED_PROGRAMS * PAIRED_SUM), 8
    if path in ("long", "wide"):
        programs = max(PROGRAMS // 64, triton.cdiv(PROGRAMS, triton.cdiv(n, min(block, 1024))))
        if path == "long":  # the partial sums of few rows would be most of the bytes
            programs = min(programs, max(PROGRAMS // 64, triton.cdiv(m, 4)))
        return programs, 4
    if not call.kinds:  # no column sums: one row per program
        return m, max(1, min(16, block // (1024 if path == "fast" and plain else 512)))
    if path == "exact":
        share = 512 if aligned and call.need_input_bias else 256
        return PROGRAMS // 2 * 1024 // max(block, 1024), max(1, min(16, block // share))
    if plain:
        programs = max(PROGRAMS * 1024 // max(block, 1024), triton.cdiv(m, 1024))
        return programs, max(1, min(16, block // 512))
    # a row has four operands, so half as many programs have as many bytes in flight
    programs = max(PROGRAMS // 2 * 1024 // max(block, 1024), PROGRAMS // 8, triton.cdiv(m, 1024))
    return programs, max(1, min(16, block // (512 if aligned else 256)))


def _maxnreg(call: Call, path: str, warps: int) -> int | None:
    """Returns the limit of registers a thread: for 16 warps on a multiprocessor, or 8 that add several operands.

    The limit is set even if the compiler would reach it anyway. Without one it keeps the next row's statistics in
    uniform registers and waits for them in the middle of this row (float32, N = 4096: 248 us instead of 207).
    """
    if path == "paired":
        return 255
    if path != "fast" and not (path == "exact" and call.kinds):
        return None
    if call.columns % 16 == 0 and not call.plain and warps <= 8:
        return 200 if path == "fast" else 255 if call.need_input_bias else 128
    return 128


def _ahead(call: Call, path: str, stages: int, shared_memory: int | None) -> int:
    """Returns `stages` if shared memory holds stages - 1 blocks of each operand that is read by rows, else 1."""
    read = [call.x, call.dy or call.x, call.residual, call.ds, call.x if call.gated else None]
    if path != "fast":  # fast reads input_bias once, the others with every row
        read.append(call.input_bias)
    size = sum((stages - 1) * call.block * dtype.itemsize for dtype in read if dtype is not None)
    return stages if shared_memory is None or size + 16384 <= shared_memory else 1


def backward_plan(call: Call, shared_memory: int | None) -> BackwardPlan:
    """Returns the plan of the backward pass.

    Args:
        shared_memory: bytes of it that a program can have; None: no limit
    """
    m, n, block = call.rows, call.columns, call.block
    path = _backward_path(call)
    programs, warps = _programs_and_warps(call, path)
    programs = max(1, min(m, programs))
    blocks = triton.cdiv(n, min(block, 1024)) if path in ("long", "wide") else 1
    marked = call.residual is not None and call.centre and path in ("exact", "long")
    redo = "never"
    light = path == "rows" and call.light  # float32 arithmetic; a gate: for rows of any size
    if path in ("fast", "paired") or marked or (light and not call.gated):
        redo = "after" if blocks > 1 else "inside"
    ahead = int(programs < m)
    if path == "paired":
        ahead = max(_ahead(call, path, stages, shared_memory) for stages in (3, 4))
    elif ahead and path in ("fast", "exact", "rows") and n % 16 == 0:
        stages = 4 if path == "fast" and call.plain and block > 4096 else 3
        ahead = _ahead(call, path, stages, shared_memory)
    column_block, column_depth = (128, 64) if n > 8192 else (16, 256) if programs > 256 or call.kinds == 1 else (32, 64)
    return BackwardPlan(
        path,
        block={"paired": block // 8, "long": min(block, 1024), "wide": min(block, 1024)}.get(path, block),
        blocks=blocks,
        programs=programs,
        warps=warps,
        ahead=ahead,
        maxnreg=_maxnreg(call, path, warps),
        redo=redo,
        marked=marked,
        separate_sums=redo != "never" or path in ("long", "wide") or call.need_input_bias,
        # float16 holds no dx of 2^17. bfloat16 holds up to 2^127, and the terms of a sum may exceed the sum.
        top=17 if torch.float16 in (call.x, call.residual) else 116,
        float16=torch.float16 in (call.x, call.residual, call.weight, call.bias),
        lift={"fast": 64, "rows": 64 if redo == "inside" else 0, "wide": 0 if call.centre else 200}.get(path, 0),
        column_block=column_block,
        column_depth=column_depth,
        rows=_tile(call)[0] if path == "rows" else 1,
        fast=path == "fast" or light,
        few=path == "paired" and call.rows < PAIRED_ROWS,
    )
