"""States that travel in checkpoints: a version, a checksum, and rules that every field has to satisfy.

A checksum finds damage, and the rules find what a wrong program wrote. Both are checked where a state enters, so nothing
later has to doubt a loaded state.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

STATE_VERSION = 3
MOST_EPOCHS = 2**31  # numbers of epochs stay below this
_LARGEST = 2**53  # what every JSON reader keeps exactly


class StateError(ValueError):
    """A state cannot be loaded: damaged, of another version or other data.

    The message names the field with the value found and the value wanted, and says how to continue.

    Examples:
        >>> state = lk.Loader(range(10), batch_size=4).state_dict()
        >>> state["cursor"]["samples"] = 5
        >>> try:
        ...     lk.Loader(range(10), batch_size=4).load_state_dict(state)
        ... except lk.StateError as error:
        ...     print(str(error)[:38])
        cannot resume: the state's checksum is
    """


class Rule(NamedTuple):
    """A rule that a field's value has to satisfy.

    Attributes:
        wanted: The rule in words, for errors.
        holds: Whether a value satisfies it.
    """

    wanted: str
    holds: Callable[[object], bool]


Form: TypeAlias = "Mapping[str, Rule | Form]"  # for each field a Rule, or the Form of its own fields


def integers(least: int, most: int, *, optional: bool = False) -> Rule:
    """Return the rule for integers from `least` to `most`; with `optional`, None is allowed too."""
    wanted = f"an integer from {least:,} to {most:,}" + (", or None" if optional else "")
    return Rule(wanted, lambda value: (optional and value is None) or (type(value) is int and least <= value <= most))


def lists_of(rule: Rule) -> Rule:
    """Return the rule for lists and tuples whose entries all satisfy `rule`."""
    return Rule(
        f"a list of: {rule.wanted}",
        lambda value: isinstance(value, list | tuple) and all(rule.holds(entry) for entry in value),
    )


EPOCH = integers(0, MOST_EPOCHS - 1)
COUNT = integers(0, _LARGEST)
POSITIVE = integers(1, _LARGEST)
INTEGER = Rule("an integer", lambda value: type(value) is int)
TEXT = Rule("a string", lambda value: isinstance(value, str))
FLAG = Rule("True or False", lambda value: isinstance(value, bool))
STATE = Rule("a state", lambda value: isinstance(value, Mapping))
NAMED_VALUES = Rule(
    "a dict of strings and integers",
    lambda value: (
        isinstance(value, Mapping) and all(isinstance(k, str) and type(v) in (str, int) for k, v in value.items())
    ),
)


def seal(fields: Mapping[str, object]) -> dict[str, Any]:
    """Return fields as a state with the version and a checksum.

    Args:
        fields: Plain values that JSON restores.
    """
    return {"version": STATE_VERSION, **fields, "checksum": _checksum(fields)}


def open_state(state: object, form: Form, what: str, way_out: str) -> dict[str, Any]:
    """Check a state and return its fields, without version and checksum.

    Args:
        state: What was loaded. Keys that the form lacks are ignored: a subclass may add its own.
        form: The fields that it has to have.
        what: The state's name, for errors.
        way_out: What to do instead.

    Raises:
        StateError: If `state` is not such a state, has another version or is damaged.
    """
    if not isinstance(state, Mapping) or not set(form) & set(state):
        found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise StateError(
            f"cannot resume: this is not {what} (found {found}, wanted the keys {list(form)}). Pass what state_dict() "
            "returned."
        )
    version = state.get("version", STATE_VERSION)
    if type(version) is not int or version != STATE_VERSION:
        raise StateError(
            f"cannot resume: the state has version {version!r:.80}, this loaderkit reads version {STATE_VERSION}. "
            f"Install the loaderkit that wrote it, or {way_out}."
        )
    if lost := [name for name in ("version", *form, "checksum") if name not in state]:
        raise StateError(
            f"cannot resume: this is not {what}, or it is damaged, or an early loaderkit wrote it: found the keys "
            f"{sorted(map(str, state))}, wanted {lost} too. Pass what state_dict() returned, or {way_out}."
        )
    fields = {name: state[name] for name in form}
    _check_form(fields, form, "", way_out)
    try:
        content = _checksum(fields)
    except (TypeError, ValueError, RecursionError) as error:
        raise StateError(
            f"cannot resume: the state has values that JSON cannot hold ({error}). The state is damaged. Use another "
            f"checkpoint, or {way_out}."
        ) from error
    if state["checksum"] != content:
        raise StateError(
            f"cannot resume: the state's checksum is {state['checksum']!r:.80}, its fields give {content!r}. The state is "
            f"damaged, or was edited. Use another checkpoint, or {way_out}."
        )
    return fields


def damaged(field: str, found: object, wanted: str, way_out: str) -> StateError:
    """Return the error for a field that breaks its rule."""
    return StateError(
        f"cannot resume: the state's {field} is {found!r:.200}, wanted {wanted}. The state is damaged. Use another "
        f"checkpoint, or {way_out}."
    )


def _check_form(fields: Mapping[str, object], form: Form, path: str, way_out: str) -> None:
    for name, rule in form.items():
        value, field = fields[name], f"{path}{name}"
        if isinstance(rule, Rule):
            if not rule.holds(value):
                raise damaged(field, value, rule.wanted, way_out)
        elif not isinstance(value, Mapping) or set(value) != set(rule):
            raise damaged(field, value, f"a dict with the keys {list(rule)}", way_out)
        else:
            _check_form(value, rule, f"{field}.", way_out)


def _checksum(fields: Mapping[str, object]) -> str:
    """Return a digest of plain values; lists and tuples count as the same."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), default=_as_dict)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _as_dict(value: object) -> dict[object, object]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a state holds a {type(value).__name__}, wanted plain values that JSON restores.")
