"""What users pass to dispatch and combine, as C++ takes it. Raises UsageError for what C++ cannot even be given."""

from __future__ import annotations

from functools import lru_cache
from operator import index
from typing import Any

from . import _core
from .errors import UsageError
from .route import Handle, Plan


@lru_cache(maxsize=256, typed=True)
def dispatch_options(
    layout: str = "token_major",
    alignment: int = 1,
    quantise: str = "none",
    scale_layout: str = "usual",
    fixed_size: bool = False,
    capacity: int | None = None,
    max_tokens: int | None = None,
    zero_padding: bool = False,
    drop_overflow: bool = False,
    wide_ids: bool = False,
) -> _core.DispatchOptions:
    """Immutable, and the same object for the same options: callers have few of them, and make many calls."""
    return _core.DispatchOptions(
        layout=layout,
        alignment=_int32("alignment", alignment),
        quantise=quantise,
        scale_layout=scale_layout,
        fixed_size=fixed_size,
        capacity=-1 if capacity is None else _at_least_0("capacity", capacity),
        max_tokens=0 if max_tokens is None else _int32("max_tokens", max_tokens),
        zero_padding=zero_padding,
        drop_overflow=drop_overflow,
        wide_ids=wide_ids,
    )


@lru_cache(maxsize=256, typed=True)
def combine_options(weighted: bool, wire: str, out_dtype: str | None) -> _core.CombineOptions:
    """As dispatch_options()."""
    return _core.CombineOptions(weighted=weighted, wire=wire, out_dtype=out_dtype)


def is_handle(route: object) -> bool:
    """True for a Handle, False for a Plan."""
    if not isinstance(route, (Plan, Handle)):
        raise UsageError(f"route is a {type(route).__name__}, legal: a Plan or a Handle")
    return isinstance(route, Handle)


def route_or_ids(route: Any) -> Any:
    """What C++ takes for a Plan, a Handle, or an array of ids."""
    if isinstance(route, (Plan, Handle)):
        return route._core
    if route is None or isinstance(route, (str, int, float)) or not hasattr(route, "shape"):
        raise UsageError(f"route is a {type(route).__name__}, legal: a Plan, a Handle, or ids")
    return route


def ids_in(route: Any) -> tuple[Any, ...]:
    """The arrays of what route_or_ids() accepts."""
    return () if isinstance(route, (Plan, Handle)) else (route,)


def plan_or_ids(route: Any) -> Any:
    if isinstance(route, Handle):
        raise UsageError("route is a Handle, legal in a split dispatch: a Plan, or ids")
    return route_or_ids(route)


def check_handle(handle: object) -> None:
    if not isinstance(handle, Handle):
        raise UsageError(f"handle is a {type(handle).__name__}, legal: the handle of a dispatch")


def sms(num_sms: int | None) -> int:
    return 0 if num_sms is None else _int32("num_sms", num_sms)


def argument_named_by(error: Exception) -> str:
    """Messages of this package begin with the argument's name; the other ranks are told that much."""
    return str(error).split(maxsplit=1)[0] if isinstance(error, UsageError) else "arguments"


def _int32(name: str, value: Any) -> int:
    number = index(value)
    if not -(2**31) <= number < 2**31:
        raise UsageError(f"{name} is {number}, legal: up to {2**31 - 1}")
    return number


def _at_least_0(name: str, value: Any) -> int:
    number = index(value)
    if not 0 <= number < 2**63:
        raise UsageError(f"{name} is {number}, legal: 0 or more, or None")
    return number
