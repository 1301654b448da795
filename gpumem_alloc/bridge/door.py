"""The bridge as a door: PyTorch's own allocator interface, all of it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from gpumem_alloc import _C, nccl, sharing, watch
from gpumem_alloc.bridge import facts, load, obtain
from gpumem_alloc.bridge.errors import BridgeError
from gpumem_alloc.errors import AllocatorError


class BridgeDoor:
    """One for a process. Making it finds, or builds, and loads the module; raises BridgeError."""

    name = "bridge"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._module = load.load(obtain.obtain(facts.of_module(torch)))
        self._attach()
        self.is_late = False

    @property
    def line(self) -> str:
        """What it is."""
        late = "; what was served before stays with PyTorch's allocator" if self.is_late else ""
        return f"the bridge to torch {self._torch.__version__}{late}"

    def _attach(self) -> None:
        try:
            self._module.attach(_C.core_access())
        except (AttributeError, RuntimeError) as error:  # a core that was not compiled anew
            raise BridgeError(
                "the bridge does not fit the compiled core of gpumem_alloc.",
                f"{str(error).splitlines()[0]}.",
                "Install gpumem_alloc anew, in a checkout: python setup.py build_ext --inplace.",
            ) from None

    def refuse_late(self) -> None:
        """It can be put in late: then it serves what is new, and PyTorch's what it has served."""

    def make(self) -> Any:
        """Return the object for torch.cuda.memory.change_current_allocator()."""
        sharing.install()
        nccl.keep_registration_off()
        made = self._torch.cuda.memory._CUDAAllocator(self._module.allocator())
        functions = self._torch._C
        functions._cuda_changeCurrentAllocator = self._installing(
            functions._cuda_changeCurrentAllocator, made.allocator()
        )
        name = "_accelerator_setAllocatorSettings"
        if hasattr(functions, name):
            setattr(functions, name, self._telling(getattr(functions, name)))
        return made

    def is_current(self) -> bool:
        """Whether PyTorch's CUDA memory comes from here."""
        return bool(self._module.is_installed())

    def _installing(self, change: Callable[[Any], None], ours: Any) -> Callable[[Any], None]:
        """Putting ours in twice does nothing; putting it in late is the module's to do or refuse.

        torch's own function refuses once its allocator has been started.
        """

        @functools.wraps(change)
        def call(allocator: Any) -> None:
            if allocator is not ours:
                change(allocator)
            elif not self.is_current():
                self._refuse_foreign()
                try:
                    self.is_late = self._module.install() == "late"
                except RuntimeError as error:
                    why = str(error).splitlines()[0].removeprefix("gpumem_alloc: ")
                    raise watch.too_late(f"{why}. {watch.who_started_cuda()}") from None
                if self.is_late:
                    self._warn_of_lost_history()

        return call

    def _refuse_foreign(self) -> None:
        name = self._module.foreign_name()
        if name:
            raise AllocatorError(
                f"another library's CUDA allocator is in PyTorch's place: {name}.\n"
                "What it has served only it can free, so ours cannot take over from it.\n"
                "Leave out torch.cuda.memory.change_current_allocator() with the other one, or "
                "gpumem_alloc.enable()."
            )

    def _warn_of_lost_history(self) -> None:
        """PyTorch's allocator cannot be asked how it records: ours is not told to."""
        if self._torch._C._cuda_isHistoryEnabled():
            warnings.warn_explicit(
                "gpumem_alloc: memory history goes on for what PyTorch's allocator has served, and "
                "for nothing new: call torch.cuda.memory._record_memory_history() again.",
                RuntimeWarning,
                *watch.user_place(),
            )

    def _telling(self, set_settings: Callable[[str], None]) -> Callable[[str], None]:
        """PyTorch's settings at run time: PyTorch parses them, and what changes nothing is said."""

        @functools.wraps(set_settings)
        def call(settings: str) -> None:
            set_settings(settings)
            if not self.is_current():
                return
            idle = self._module.idle_settings(settings, _C.options_in_force()["strategy"])
            if idle:
                changes = "changes" if len(idle) == 1 else "change"
                warnings.warn_explicit(
                    f"gpumem_alloc: {', '.join(idle)} {changes} nothing while gpumem_alloc serves "
                    "the memory. Its own options are in GPUMEM_ALLOC_CONF, read at the start.",
                    RuntimeWarning,
                    *watch.user_place(),
                )

        return call
