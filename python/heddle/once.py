"""A property that is worked out once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")


class once(Generic[Value]):  # noqa: N801 - reads as a decorator
    """functools.cached_property without its lock, which takes longer than making a tensor does (1.5 us, Python 3.11).
    Two threads that ask at the same time may each make a value."""

    def __init__(self, make: Callable[[Any], Value]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, of: None, owner: type) -> once[Value]: ...
    @overload
    def __get__(self, of: object, owner: type) -> Value: ...
    def __get__(self, of: Any, owner: type) -> Any:
        if of is None:
            return self
        value = of.__dict__[self._name] = self._make(of)
        return value
