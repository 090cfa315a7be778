"""Processor instructions that kernels call directly."""

from __future__ import annotations

from semistream.compiled import intrinsic


@intrinsic
def prefetch(typingctx, array, i):
    """Fetch the cache line that contains the beginning of array[i] from memory, without waiting for
    it."""
    from llvmlite import ir
    from numba import types

    def codegen(context, builder, signature, args):
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        pointer = _address(context, builder, signature.args[0], *args)
        fetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte] + 3 * [number])
        )
        read, keep, data = (ir.Constant(number, n) for n in (0, 3, 1))
        builder.call(fetch, [pointer, read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@intrinsic
def move(typingctx, to, at, source, begin, size):
    """Copy source[begin:begin + size] to to[at:at + size], byte arrays that do not overlap. A
    constant size compiles to one instruction without a call."""
    from numba import types
    from numba.core import cgutils

    def codegen(context, builder, signature, args):
        a, b = (_address(context, builder, signature.args[n], args[n], args[n + 1]) for n in (0, 2))
        cgutils.raw_memcpy(builder, a, b, args[4], 1)
        return context.get_dummy_value()

    return types.void(to, types.intp, source, types.intp, types.intp), codegen


def _address(context, builder, kind, array, i):
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    index = [i] + [context.get_constant(types.intp, 0)] * (kind.ndim - 1)
    pointer = cgutils.get_item_pointer(
        context, builder, kind, context.make_array(kind)(context, builder, array), index
    )
    return builder.bitcast(pointer, ir.IntType(8).as_pointer())
