"""Numba's private classes: kernels with less to compile, and a cache on disk that survives updates and damage."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite.binding import Linkage
from numba import _dynfunc, types
from numba.core import ir
from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.runtime import rtsys

from . import simd_llvm
from .jit import DIGEST, FOLDER


def njit(*, hidden: bool, allocates: bool, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` with the classes below; hidden: only other kernels call the function, allocates: it makes arrays."""

    def decorate(function: Callable[..., Any]) -> Any:
        """The function compiled with our linkage, and cached on disk unless it is hidden."""
        kernel = numba.njit(
            pipeline_class=_Compiler, no_cfunc_wrapper=True, no_cpython_wrapper=hidden, _nrt=allocates, **options
        )(function)
        if not hidden:
            kernel._cache = NullCache() if FOLDER is None else _OnDisk(function)
        template = kernel.get_call_template

        def without_literals(args: Any, kws: Any) -> Any:
            """Types for a call from another kernel: a constant is a number, not a reason to compile once more."""
            return template([types.unliteral(a) for a in args], {k: types.unliteral(a) for k, a in kws.items()})

        kernel.get_call_template = without_literals
        return kernel

    return decorate


class _Library(JITCodeLibrary):  # type: ignore[misc]
    """Compiled code that calls its own copies of the functions it was linked with.

    Numba leaves the copies as weak symbols, of which the linker takes the one that was loaded first. Copies were
    optimised together with different callers and fuse different multiplications with additions, so the last bits of a
    result would depend on which kernels were compiled or loaded before.

    Code without reference counts (`counted` False) is spared the preparatory rounds of optimisation that remove them.
    """

    counted = True

    def _optimize_functions(self, ll_module: Any) -> None:
        """Numba's passes over functions, which code without reference counts does not need."""
        if self.counted:
            super()._optimize_functions(ll_module)
        else:
            ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        """One round of module passes for code without reference counts, where Numba makes two."""
        if self.counted:
            super()._optimize_final_module()
        else:
            manager, builder = self._codegen._module_pass_manager()
            manager.run(self._final_module, builder)

    def _finalize_final_module(self) -> None:
        """Make linked copies internal, so that unused ones are dropped, and remember their names."""
        functions = self._final_module.functions
        self._linked = [f.name for f in functions if f.linkage == Linkage.linkonce_odr and not f.is_declaration]
        self._change_linkage(self._final_module, Linkage.internal)
        super()._finalize_final_module()

    def _get_module_for_linking(self) -> Any:
        """The code for linking into callers, in which the copies may be merged again."""
        fresh = self._shared_module is None
        module = super()._get_module_for_linking()
        if fresh:
            self._change_linkage(module, Linkage.linkonce_odr)
        return module

    def _change_linkage(self, module: Any, linkage: Linkage) -> None:
        """Give all linked copies this linkage."""
        for name in self._linked:
            module.get_function(name).linkage = linkage


class _InnerLibrary(JITCodeLibrary):  # type: ignore[misc]
    """Code of a function that only kernels call: linked into them as it is, to be optimised and emitted there."""

    def finalize(self) -> None:
        """Link the callees in, without optimising: the callers' module does that once."""
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


class _Compiler(Compiler):  # type: ignore[misc]
    """Numba's compiler, which refuses functions without reference counts where these would be needed.

    A function without a wrapper for Python is called by kernels only and needs no machine code: its last steps are
    left out.
    """

    def compile_extra(self, function: Callable[..., Any]) -> Any:
        """Compile into one of our libraries; refuses reference counts in a function that declares none."""
        state, codegen = self.state, self.state.targetctx.codegen()
        counted, inner = state.flags.nrt, state.flags.no_cpython_wrapper
        state.library = (_InnerLibrary if inner else _Library)(codegen, function.__qualname__)
        state.library.counted = counted
        state.library.enable_object_caching()
        state.flags.no_compile = inner
        result = super().compile_extra(function)
        for name, kind in () if counted else self._received(result):
            if state.targetctx.data_model_manager[kind].contains_nrt_meminfo():
                raise TypeError(f"{function.__qualname__} must be declared with allocates=True: {name} is {kind}")
        if not inner:
            return result
        name = result.fndesc.qualname
        nothing = _dynfunc.make_function(result.fndesc.lookup_module(), name, "", 0, result.environment, ())
        state.targetctx.insert_user_function(nothing, result.fndesc, [result.library])
        return result._replace(entry_point=nothing)

    def _received(self, result: Any) -> Iterator[tuple[str, Any]]:
        """Types of the function's result and of the results of the kernels it calls."""
        yield "its result", result.signature.return_type
        for call, signature in self.state.calltypes.items():
            if isinstance(call, ir.Expr) and call.op == "call":
                called = self.state.typemap[call.func.name]
                if isinstance(called, types.Dispatcher):
                    yield called.dispatcher.__name__, signature.return_type


class _Locator:
    """Tells Numba the one folder of all kernels, and that they belong to all sources together."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._line = function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Callable[..., Any], _file: str) -> _Locator:
        """Numba's hook: a locator for any function."""
        return cls(function)

    def get_cache_path(self) -> str:
        """The folder of compiled code."""
        return str(FOLDER)

    def get_source_stamp(self) -> str:
        """The digest of all sources, with which compiled code is out of date."""
        return DIGEST

    def get_disambiguator(self) -> str:
        """The line, which tells functions of one name apart."""
        return str(self._line)

    def ensure_cache_path(self) -> None:
        """Make the folder."""
        os.makedirs(self.get_cache_path(), exist_ok=True)


class _Files(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = [_Locator]  # noqa: RUF012  (Numba's attribute)


class _OnDisk(FunctionCache):  # type: ignore[misc]
    """Compiled code in files; what cannot be read is dropped and compiled again, what cannot be written is not kept."""

    _impl_class = _Files

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Compiled code from its file; None, and the file is deleted, if that is damaged."""
        # Numba's own method also loads the registries of all functions that kernels may call, and with them SciPy's
        # linear algebra. Only the compiler reads them, and it loads them itself; code needs the runtime's symbols.
        rtsys.initialize(target_context)
        try:
            with self._guard_against_spurious_io_errors():
                return self._load_overload(signature, target_context)
        except Exception:  # a damaged pickle can raise almost anything
            self._drop()
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Write compiled code, if the folder can be written."""
        try:
            super().save_overload(signature, compiled)
        except OSError:  # full, over quota, or read-only
            return

    def _drop(self) -> None:
        """Delete the function's files."""
        try:
            for file in Path(self.cache_path).glob(f"{self._impl.filename_base}.*"):
                file.unlink(missing_ok=True)
        except OSError:
            return


@njit(hidden=True, allocates=False, nogil=True)
def _probe_inner(values, arrivals):
    """An inner function that uses vectors and a barrier's counter."""
    simd_llvm.store8(values, 0, simd_llvm.add8(simd_llvm.load8(values, 0), simd_llvm.spread8(1.0)))
    return simd_llvm.arrive(arrivals)


@njit(hidden=False, allocates=True, nogil=True)
def _probe_outer(values):
    """A kernel that calls the inner one and allocates."""
    arrivals = np.zeros(1, dtype=np.int64)
    _probe_inner(values, arrivals)
    return arrivals


@njit(hidden=False, allocates=False, nogil=True)
def _probe_sum(values, arrivals):
    """A kernel that calls the inner one without allocating."""
    return _probe_inner(values, arrivals) + simd_llvm.sum8(simd_llvm.load8(values, 0))


def probe() -> None:
    """Compile, keep and load a little of everything, so that a Numba that these classes do not fit fails here."""
    for _ in range(2):
        values = np.ones(8)
        arrivals = njit(hidden=False, allocates=True, nogil=True)(_probe_outer.py_func)(values)
        total = njit(hidden=False, allocates=False, nogil=True)(_probe_sum.py_func)(values, arrivals)
        if total != 25.0:
            raise ValueError(f"a compiled function gave {total} instead of 25.0")
