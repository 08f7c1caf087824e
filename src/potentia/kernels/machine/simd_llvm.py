"""`simd` and the barrier of `team` as LLVM instructions.

LLVM lowers vectors to whatever the machine has (AVX-512, two AVX2 halves, NEON).
"""

from __future__ import annotations

import sys

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

CHUNK = 8

_VECTOR = ir.VectorType(ir.DoubleType(), CHUNK)
_SINGLES = ir.VectorType(ir.FloatType(), CHUNK)
_CONTRACT = ("contract",)


class Vector8(types.Type):
    """Numba type of a vector of eight doubles."""

    def __init__(self):
        super().__init__(name="Vector8")


vector8 = Vector8()


@register_model(Vector8)
class _Vector8Model(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, _VECTOR)


def _pointer(context, builder, array_type, array, index, kind):
    """The address of array[index], as a pointer to `kind`."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), kind.as_pointer())


@intrinsic
def load8(typingctx, array, index):
    """array[index : index + 8] of a contiguous array of doubles or floats; bounds are the caller's business."""

    def codegen(context, builder, signature, args):
        """An unaligned load; floats are widened."""
        single = signature.args[0].dtype == types.float32
        kind, align = (_SINGLES, 4) if single else (_VECTOR, 8)
        loaded = builder.load(_pointer(context, builder, signature.args[0], *args, kind))
        loaded.align = align
        return builder.fpext(loaded, _VECTOR) if single else loaded

    return vector8(array, types.int64), codegen


@intrinsic
def run8(typingctx, index, at):
    """index[at], if index[at : at + 8] (uint32) are consecutive numbers; else -1.

    What lanes read of their neighbours mostly lies side by side, and one load costs far less than eight.
    """

    def codegen(context, builder, signature, args):
        """The first number if all eight are consecutive, else -1."""
        word, wide = ir.IntType(32), ir.IntType(64)
        kind = ir.VectorType(word, CHUNK)
        numbers = builder.load(_pointer(context, builder, signature.args[0], *args, kind))
        numbers.align = 4
        first = builder.extract_element(numbers, word(0))
        single = builder.insert_element(ir.Constant(kind, ir.Undefined), first, word(0))
        spread = builder.shuffle_vector(single, ir.Constant(kind, ir.Undefined), ir.Constant(kind, None))
        same = builder.icmp_unsigned("==", numbers, builder.add(spread, ir.Constant(kind, list(range(CHUNK)))))
        whole = builder.icmp_unsigned("==", builder.bitcast(same, ir.IntType(CHUNK)), ir.IntType(CHUNK)(-1))
        return builder.select(whole, builder.zext(first, wide), wide(-1))

    return types.int64(index, types.int64), codegen


@intrinsic
def store8(typingctx, array, index, value):
    """array[index : index + 8] = value."""

    def codegen(context, builder, signature, args):
        """An unaligned store."""
        to = _pointer(context, builder, signature.args[0], args[0], args[1], _VECTOR)
        builder.store(args[2], to).align = 8
        return context.get_dummy_value()

    return types.void(array, types.int64, vector8), codegen


@intrinsic
def spread8(typingctx, value):
    """Eight copies of one double."""

    def codegen(context, builder, signature, args):
        """A shuffle that copies the first lane to all."""
        single = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), args[0], ir.IntType(32)(0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), CHUNK), None)
        return builder.shuffle_vector(single, ir.Constant(_VECTOR, ir.Undefined), mask)

    return vector8(types.float64), codegen


def _lanewise(arity, emit):
    """The intrinsic of two to four vectors that `emit(builder, *vectors)` writes as one or two instructions."""

    def codegen(context, builder, signature, args):
        """The operation on the operands."""
        return emit(builder, *args)

    def two(typingctx, a, b):
        """An operation of two vectors."""
        return vector8(a, b), codegen

    def three(typingctx, a, b, c):
        """An operation of three vectors."""
        return vector8(a, b, c), codegen

    def four(typingctx, a, b, c, d):
        """An operation of four vectors."""
        return vector8(a, b, c, d), codegen

    return intrinsic((two, three, four)[arity - 2])


def _fused(builder, a, b, c):
    """a * b + c, which the processor may round once."""
    return builder.fadd(builder.fmul(a, b, flags=_CONTRACT), c, flags=_CONTRACT)


def _select(builder, order, a, b, x, y):
    """x where a comes before b in this order, y elsewhere and where a or b is nan."""
    return builder.select(builder.fcmp_ordered(order, a, b), x, y)


_ZERO = ir.Constant(_VECTOR, None)

add8 = _lanewise(2, ir.IRBuilder.fadd)
sub8 = _lanewise(2, ir.IRBuilder.fsub)
mul8 = _lanewise(2, ir.IRBuilder.fmul)
div8 = _lanewise(2, ir.IRBuilder.fdiv)
#: a * b + c, fused where the machine can.
fma8 = _lanewise(3, _fused)
#: The larger, or smaller, of a and b; b where a is nan.
max8 = _lanewise(2, lambda builder, a, b: _select(builder, ">", a, b, a, b))
min8 = _lanewise(2, lambda builder, a, b: _select(builder, "<", a, b, a, b))
#: a where it is above 0, b elsewhere.
above8 = _lanewise(2, lambda builder, a, b: _select(builder, ">", a, _ZERO, a, b))
#: x where a is below b, y elsewhere.
pick8 = _lanewise(4, lambda builder, a, b, x, y: _select(builder, "<", a, b, x, y))


@intrinsic
def sum8(typingctx, a):
    """The sum of a vector's eight entries, in pairs."""

    def codegen(context, builder, signature, args):
        """Additions in pairs, so that the order is fixed."""
        parts = [builder.extract_element(args[0], ir.IntType(32)(k)) for k in range(CHUNK)]
        while len(parts) > 1:
            parts = [builder.fadd(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    return types.float64(vector8), codegen


@intrinsic
def transpose8(typingctx, source, at, step, target, to, stride):
    """target[to + j * stride + i] = source[at + i * step + j] for i and j in 0..7; a target of floats is rounded to."""

    def codegen(context, builder, signature, args):
        """Eight loads, three rounds of shuffles, eight stores."""
        single = signature.args[3].dtype == types.float32
        kind, align = (_SINGLES, 4) if single else (_VECTOR, 8)
        read = context.make_array(signature.args[0])(context, builder, args[0]).data
        write = context.make_array(signature.args[3])(context, builder, args[3]).data

        def pointer(data, first, by, k, vector):
            """Where vector k begins."""
            index = builder.add(first, builder.mul(by, ir.IntType(64)(k)))
            return builder.bitcast(builder.gep(data, [index]), vector.as_pointer())

        rows = []
        for k in range(CHUNK):
            rows.append(builder.load(pointer(read, args[1], args[2], k, _VECTOR)))
            rows[-1].align = 8
        # three rounds, each of which exchanges one bit of the row's number with one of the column's
        for bit in (1, 2, 4):
            mixed = list(rows)
            for k in range(CHUNK):
                if not k & bit:
                    for half in (0, bit):
                        picks = [(j & ~bit) + half + (CHUNK if j & bit else 0) for j in range(CHUNK)]
                        mask = ir.Constant(ir.VectorType(ir.IntType(32), CHUNK), picks)
                        mixed[k + half] = builder.shuffle_vector(rows[k], rows[k + bit], mask)
            rows = mixed
        for k, row in enumerate(rows):
            value = builder.fptrunc(row, _SINGLES) if single else row
            builder.store(value, pointer(write, args[4], args[5], k, kind)).align = align
        return context.get_dummy_value()

    word = types.int64
    return types.void(source, word, word, target, word, word), codegen


@intrinsic
def bits_of(typingctx, x):
    """The bit pattern of a double as a 64-bit integer."""

    def codegen(context, builder, signature, args):
        """A cast without conversion."""
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@intrinsic
def double_of(typingctx, k):
    """The double with this bit pattern."""

    def codegen(context, builder, signature, args):
        """A cast without conversion."""
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@intrinsic
def arrive(typingctx, arrivals):
    """Add one to arrivals[0], as one step for all threads; what it was."""

    def codegen(context, builder, signature, args):
        """An atomic addition; its old value."""
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw("add", data, ir.IntType(64)(1), "seq_cst")

    return types.int64(arrivals), codegen


@intrinsic
def arrived(typingctx, arrivals):
    """arrivals[0] as other threads left it, and with it all that they wrote before."""

    def codegen(context, builder, signature, args):
        """An atomic load."""
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.load_atomic(data, "seq_cst", 8)

    return types.int64(arrivals), codegen


@intrinsic
def sleep(typingctx):
    """Leave the core to other threads for a moment."""

    def codegen(context, builder, signature, args):
        """A call of the system's sleep."""
        name, moment = ("Sleep", 1) if sys.platform == "win32" else ("usleep", 50)
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32)])
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        builder.call(function, [ir.IntType(32)(moment)])
        return context.get_dummy_value()

    return types.void(), codegen
