"""Between users' order of pairs and the blocks of `star`: filling tables, moving messages, reading out."""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from .machine.jit import njit
from .machine.simd import CHUNK, transpose8
from .star_blocks import LOG, PRODUCT, RECEIVES, SAFE_RANGE, chunk_at
from .vecmath import KERNEL, exp, log


class PairScores(namedtuple("PairScores", "values offset shapes count")):
    """Scores of all pairs in users' order: table e is values[offset[e]:], C-ordered of shapes[e]; c_e = count[e]."""


@njit(**KERNEL)
def table_ranges(start, stop, scores, high, low):
    """Largest and smallest entry of tables start..stop."""
    for e in range(start, stop):
        table = scores.values[scores.offset[e] : scores.offset[e] + scores.shapes[e, 0] * scores.shapes[e, 1]]
        top, bottom = table[0], table[0]
        for k in range(table.size):
            top = table[k] if table[k] > top else top
            bottom = table[k] if table[k] < bottom else bottom
        high[e], low[e] = top, bottom


@njit(**KERNEL)
def choose_modes(layout, scores, high, low, mode):
    """PRODUCT for a block all of whose tables are finite and of safe range over c_e, else LOG."""
    for u in range(mode.size):
        mode[u] = PRODUCT
        for row in range(layout.slot_ptr[u], layout.slot_ptr[u + 1]):
            for x in range(layout.pair.shape[1]):
                e = layout.pair[row, x]
                if e >= 0 and not high[e] - low[e] <= SAFE_RANGE * scores.count[e]:
                    mode[u] = LOG


@njit(allocates=True, **KERNEL)
def fill_tables(start, stop, layout, scores, high, rest, blocks):
    """Scaled tables of the rows of blocks start..stop: theta / c_e shifted to maximum 0, or psi, its exponential.

    Of rows that receive their products with `rest`, of all others without. States beyond a variable's own get -inf
    (0); an empty slot gets a table of zeros (ones).
    """
    L, W = layout.n_states, layout.pair.shape[1]
    width = CHUNK if W % CHUNK == 0 else 1
    where, steps = np.empty(width, dtype=np.int64), np.empty((2, width), dtype=np.int64)
    ends, factors = np.empty((2, width), dtype=np.int64), np.empty((2, width))
    scratch, table, mode = np.empty((width, L * L)), blocks.table, blocks.mode
    for u in range(start, stop):
        chunked = mode[u] == PRODUCT and W % CHUNK == 0 and L != 2
        for row in range(layout.slot_ptr[u], layout.slot_ptr[u + 1]):
            if (blocks.role[row] == RECEIVES) != rest:
                continue
            for x in range(0, W, width):
                whole = _look_up(layout, scores, row, x, high, where, steps, ends, factors)
                at = chunk_at(blocks, u, row, x) if chunked else blocks.base[row] + x
                if chunked and whole and L >= CHUNK and _all_equal(steps[0]):
                    _fill_chunk(scores.values, where, steps[0, 0] == 1, factors, scratch, L, table, at)
                elif L == 2 and whole and mode[u] == PRODUCT:
                    _fill_two(scores.values, where, steps[0], factors, scratch, table, at, W)
                else:
                    _fill_lanes(
                        scores.values, where, steps, ends, factors, whole, mode[u] == PRODUCT, L,
                        table, at, width if chunked else W,
                    )  # fmt: skip


@njit(**KERNEL)
def _all_equal(values):
    """`np.all(values == values[0])`, without a new array and the modules that Numba would load for it."""
    equal = True
    for k in range(1, values.size):
        equal = equal and values[k] == values[0]
    return equal


@njit(**KERNEL)
def _look_up(layout, scores, row, x, high, where, steps, ends, factors):
    """Where the tables of some lanes lie, seen from their side, their shapes, maxima and 1 / c_e.

    An empty slot takes the table of the lane before it times zero. Returns whether all tables are such, or have all
    states.
    """
    whole, known, turned = layout.pair[row, x] >= 0, 0, False
    for lane in range(where.size):
        e = layout.pair[row, x + lane]
        if e >= 0:
            known, turned = e, layout.side[row, x + lane] != 0
        n0, n1 = scores.shapes[known, 0], scores.shapes[known, 1]
        where[lane] = scores.offset[known]
        steps[0, lane], steps[1, lane] = (1, n1) if turned else (n1, 1)
        ends[0, lane], ends[1, lane] = (n1, n0) if turned else (n0, n1)
        factors[0, lane], factors[1, lane] = (high[e], 1.0 / scores.count[e]) if e >= 0 else (0.0, 0.0)
        whole = whole and n0 == layout.n_states and n1 == layout.n_states
    return whole


@njit(**KERNEL)
def _fill_chunk(values, where, turned, factors, scratch, L, table, at):
    """psi of eight whole tables, seen from the same side, as [a][b][lane]; L is 8 at least.

    Each table is read in order; eight entries of eight tables at a time then change places.
    """
    top, scale = factors[0], factors[1]
    for lane in range(CHUNK):
        own, out = values[where[lane] : where[lane] + L * L], scratch[lane]
        for k in range(L * L):
            out[k] = exp((own[k] - top[lane]) * scale[lane])
    flat, along, across = scratch.reshape(-1), CHUNK, L * CHUNK
    if turned:
        along, across = across, along
    for a in range(L):
        for b in range(0, L, CHUNK):
            b = min(b, L - CHUNK)  # the last eight entries of a row, some of them once more
            transpose8(flat, a * L + b, L * L, table, at + a * across + b * along, along)


@njit(**KERNEL)
def _fill_two(values, where, down, factors, scratch, table, at, W):
    """psi of whole tables of two states as [a][b][lane], W apart."""
    for lane in range(where.size):
        for k in range(4):
            scratch[lane, k] = (values[where[lane] + k] - factors[0, lane]) * factors[1, lane]
    flat = scratch.reshape(-1)
    for k in range(flat.size):
        flat[k] = exp(flat[k])
    for lane in range(where.size):
        a = down[lane]  # of entry (1, 0): 2, or 1 where the pair is seen from its second variable
        table[at + lane] = scratch[lane, 0]
        table[at + lane + W] = scratch[lane, 3 - a]
        table[at + lane + 2 * W] = scratch[lane, a]
        table[at + lane + 3 * W] = scratch[lane, 3]


@njit(**KERNEL)
def _fill_lanes(values, where, steps, ends, factors, whole, product, L, table, at, stride):
    """Entries [a][b][lane] of some lanes, `stride` apart, each written once."""
    low, down, right = 0.0 if product else -np.inf, steps[0], steps[1]
    top, scale = factors[0], factors[1]
    for a in range(L):
        for b in range(L):
            out = table[at : at + where.size]
            if whole:
                for lane in range(where.size):
                    v = (values[np.uint64(where[lane] + a * down[lane] + b * right[lane])] - top[lane]) * scale[lane]
                    v = v if scale[lane] > 0.0 else 0.0  # not nan in an empty slot
                    out[lane] = exp(v) if product else v
            else:
                for lane in range(where.size):
                    if scale[lane] == 0.0:
                        out[lane] = 1.0 if product else 0.0
                    elif a < ends[0, lane] and b < ends[1, lane]:
                        v = (values[where[lane] + a * down[lane] + b * right[lane]] - top[lane]) * scale[lane]
                        out[lane] = exp(v) if product else v
                    else:
                        out[lane] = low
            at += stride


@njit(**KERNEL)
def largest_reach(singles, counting, total, steepest):
    """The largest range of a variable's P, where log M of a pair has at most the range `steepest`.

    P = (theta_i + sum_e c_e log M_e) / C over the states that are left; C is `total`, and C less c_i the sum of c_e.
    """
    reach = 0.0
    for i in range(singles.shape[0]):
        high, low = -np.inf, np.inf
        for a in range(singles.shape[1]):
            v = singles[i, a]
            high = v if v > high else high
            low = v if v < low and v > -np.inf else low
        reach = max(reach, (high - low + (total[i] - counting[i]) * steepest) / total[i])
    return reach


@njit(**KERNEL)
def to_lanes(variable, singles, out):
    """out[u, a, x] = singles[i, a] for the variable i in lane x of block u; what has none stays."""
    for u in range(variable.shape[0]):
        for x in range(variable.shape[1]):
            i = variable[u, x]
            if i >= 0:
                for a in range(out.shape[1]):
                    out[u, a, x] = singles[i, a]


@njit(**KERNEL)
def from_lanes(position, lanes, out):
    """out[i, a] of the variable i at position[i] = block * W + lane of `lanes` (B, L, W)."""
    W = lanes.shape[2]
    for i in range(position.size):
        u, x = position[i] // W, position[i] % W
        for a in range(out.shape[1]):
            out[i, a] = lanes[u, a, x]


@njit(allocates=True, **KERNEL)
def messages_out(pair, side, count, lam, exponentials, out):
    """Messages in score units and users' order: out[e, side, a] = c_e lam; `lam` may hold their exponentials."""
    L, W = lam.shape[1], lam.shape[2]
    own = np.empty((L, W))
    for row in range(pair.shape[0]):
        _logarithms(lam[row], exponentials, own)
        for x in range(W):
            e = pair[row, x]
            if e >= 0:
                part = out[e, side[row, x]]
                for a in range(L):
                    part[a] = count[e] * own[a, x]


@njit(**KERNEL)
def _logarithms(messages, exponentials, out):
    """A row's messages (L, W), which may be exponentials."""
    for a in range(out.shape[0]):
        if exponentials:
            for x in range(out.shape[1]):
                out[a, x] = log(messages[a, x])
        else:
            for x in range(out.shape[1]):
                out[a, x] = messages[a, x]


@njit(**KERNEL)
def messages_in(position, count, given, lam):
    """Inverse of `messages_out`; a state that its variable's own score forbids keeps its -inf."""
    L, W = lam.shape[1], lam.shape[2]
    for e in range(position.shape[0]):
        for side in range(2):
            row, x = position[e, side] // W, position[e, side] % W
            # the largest message of the states that are left is 0
            peak = -np.inf
            for a in range(L):
                if lam[row, a, x] > -np.inf:
                    peak = max(peak, given[e, side, a])
            for a in range(L):
                if lam[row, a, x] > -np.inf:
                    lam[row, a, x] = (given[e, side, a] - peak) / count[e]


@njit(inner=True, **KERNEL)
def _add_both(scores, lam, e, row):
    """row(a, b) = theta_e(a, b) + lam_e,i(a) + lam_e,j(b) of pair e."""
    n1 = scores.shapes[e, 1]
    for a in range(scores.shapes[e, 0]):
        for b in range(n1):
            k = a * n1 + b
            row[k] = scores.values[scores.offset[e] + k] + lam[e, 0, a] + lam[e, 1, b]


@njit(**KERNEL)
def read_pairs(start, stop, scores, maximum, lam, out_offset, out):
    """Marginals of pairs start..stop into `out`, that of pair e from out_offset[e - start] on."""
    for e in range(start, stop):
        n0, n1 = scores.shapes[e, 0], scores.shapes[e, 1]
        row = out[out_offset[e - start] : out_offset[e - start] + n0 * n1]
        _add_both(scores, lam, e, row)
        peak, best = -np.inf, 0
        for k in range(n0 * n1):
            if row[k] > peak:
                peak, best = row[k], k
        if maximum:
            row[:] = 0.0
            row[best] = 1.0
            continue
        total = 0.0
        for k in range(n0 * n1):
            row[k] = exp((row[k] - peak) / scores.count[e])
        for k in range(n0 * n1):
            total += row[k]
        for k in range(n0 * n1):
            row[k] /= total


@njit(allocates=True, **KERNEL)
def pair_values(start, stop, scores, maximum, lam, out):
    """out[e] = c_e log sum exp((theta_e + lam_e,i + lam_e,j) / c_e), or the largest sum, of pairs start..stop."""
    work = np.empty(lam.shape[2] ** 2)
    for e in range(start, stop):
        row = work[: scores.shapes[e, 0] * scores.shapes[e, 1]]
        _add_both(scores, lam, e, row)
        out[e] = smooth_max(row, 0.0 if maximum else scores.count[e])


@njit(**KERNEL)
def take_messages(pairs, lam, out):
    """out(i, a) = - sum of the messages into variable i."""
    out[:] = 0.0
    for e in range(pairs.shape[0]):
        for side in range(2):
            for a in range(out.shape[1]):
                out[pairs[e, side], a] -= lam[e, side, a]


@njit(allocates=True, **KERNEL)
def add_variable_values(start, stop, blocks, exponentials, variable, counting, maximum):
    """To the values of blocks: sums over variables of c_i log sum exp(b_i / c_i), b_i = theta_i - sum_e c_e lam_e.

    max b_i where c_i = 0. States with a -inf score or message are dead and take no part.
    """
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    b, own, c = np.empty((L, W)), np.empty((L, W)), np.empty(W)
    peak, total = np.empty(W), np.empty(W)
    for u in range(start, stop):
        for a in range(L):
            for x in range(W):
                b[a, x] = blocks.node[u, a, x]
        for row in range(blocks.slot_ptr[u], blocks.slot_ptr[u + 1]):
            _logarithms(blocks.lam[row], exponentials, own)
            for a in range(L):
                for x in range(W):
                    weight = blocks.count[row, x]
                    v = b[a, x] - weight * own[a, x] if own[a, x] > -np.inf else -np.inf
                    b[a, x] = v if weight > 0.0 else b[a, x]
        for x in range(W):
            c[x] = 0.0 if maximum or variable[u, x] < 0 else counting[variable[u, x]]
        _smooth_maxima(b, c, peak, total)
        for x in range(W):
            if variable[u, x] >= 0:
                blocks.value[u] += peak[x]


@njit(**KERNEL)
def _smooth_maxima(b, c, peak, total):
    """`smooth_max` of every lane into `peak`; b (states, lanes) is spent."""
    for x in range(c.size):
        peak[x], total[x] = -np.inf, 0.0
    for a in range(b.shape[0]):
        for x in range(c.size):
            b[a, x] = -b[a, x] if c[x] < 0.0 else b[a, x]
            peak[x] = b[a, x] if b[a, x] > peak[x] and abs(b[a, x]) < np.inf else peak[x]
    for a in range(b.shape[0]):
        for x in range(c.size):
            v = (b[a, x] - peak[x]) / (abs(c[x]) if c[x] != 0.0 else 1.0)
            total[x] += exp(v if abs(b[a, x]) < np.inf else -np.inf)
    for x in range(c.size):
        smooth = peak[x] + abs(c[x]) * log(total[x]) if c[x] != 0.0 and total[x] > 0.0 else peak[x]
        peak[x] = -smooth if c[x] < 0.0 and smooth > -np.inf else smooth


@njit(inner=True, **KERNEL)
def smooth_max(values, c):
    """c log sum exp(values / c) over finite values; their max at c = 0; -inf when there are none. Spends `values`."""
    sign = -1.0 if c < 0.0 else 1.0
    peak = -np.inf
    for k in range(values.size):
        values[k] = sign * values[k] if values[k] > -np.inf else -np.inf
        peak = values[k] if values[k] > peak else peak
    if c == 0.0 or peak == -np.inf:
        return peak
    scale = abs(c)
    for k in range(values.size):  # apart from the sum, whose order is fixed, so that it is vectorised
        values[k] = exp((values[k] - peak) / scale)
    total = 0.0
    for k in range(values.size):
        total += values[k]
    return sign * (peak + scale * np.log(total))


@njit(**KERNEL)
def pair_bias(lam, scale, n_first, n_second, out):
    """out[e, a * n_second + b] = scale[e] (lam[e, 0, a] + lam[e, 1, b]) for lam (m, 2, states)."""
    for e in range(lam.shape[0]):
        first, second, row = lam[e, 0], lam[e, 1], out[e]
        for a in range(n_first):
            for b in range(n_second):
                row[a * n_second + b] = scale[e] * (first[a] + second[b])
