"""JSON schemas of tools: from the annotations of a function, and whether arguments keep to one."""

from __future__ import annotations

import inspect
import typing
from typing import Any, Callable, Dict, Optional

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", list: "array"}
_OF_JSON: Dict[str, Any] = {"string": str, "boolean": bool, "object": dict, "array": list, "null": type(None)}


def _of_type(annotation: Any, where: str) -> Dict[str, Any]:
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _TYPES:
        return {"type": _TYPES[annotation]}
    if origin is list:
        return {"type": "array", "items": _of_type(inside[0], where)}
    if origin is dict:
        return {"type": "object"}
    if origin is typing.Literal:
        return {"enum": list(inside)}
    if type(None) in inside:  # Optional[T], T | None
        others = [one for one in inside if one is not type(None)]
        return {"anyOf": [*(_of_type(one, where) for one in others), {"type": "null"}]}
    raise TypeError(f"{where} has the type {annotation!r}; a tool takes str, int, float, bool, list[...], dict, Literal[...] and Optional[...] of these")


def of_function(function: Callable[..., Any], name: str) -> Dict[str, Any]:
    """TypeError: an argument has no type, or none that JSON has."""
    hints = typing.get_type_hints(function)
    properties, required = {}, []
    for parameter in inspect.signature(function).parameters.values():
        where = f"tool {name}: the argument {parameter.name}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{where} cannot be given by its name")
        if parameter.name not in hints:
            raise TypeError(f"{where} has no type; write {parameter.name}: str, or what it is")
        properties[parameter.name] = _of_type(hints[parameter.name], where)
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def example(schema: Any, depth: int = 8) -> Any:
    """A value that keeps to it, as far as `problem` reads it."""
    if not isinstance(schema, dict) or depth == 0:
        return "x"
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("anyOf"):
        return example(schema["anyOf"][0], depth - 1)
    names = schema.get("type", "string")
    name = names if isinstance(names, str) else names[0]
    if name == "object":
        known = schema.get("properties", {})
        return {one: example(known.get(one), depth - 1) for one in schema.get("required", known)}
    if name == "array":
        return [example(schema.get("items"), depth - 1)]
    if name in ("integer", "number"):
        return schema.get("minimum", min(1, schema.get("maximum", 1)))
    return {"boolean": True, "null": None}.get(name, "x" * max(1, schema.get("minLength", 1)))


def _is(value: Any, name: str) -> bool:
    if name in ("integer", "number"):
        return isinstance(value, (int, float) if name == "number" else int) and not isinstance(value, bool)
    return isinstance(value, _OF_JSON.get(name, object))


def problem(value: Any, schema: Any, where: str = "") -> Optional[str]:
    """What is wrong with it; None: nothing. Reads type, enum, anyOf, properties, required, additionalProperties, items, minimum,
    maximum, minLength and maxLength; other words of a schema are for the tool itself to keep."""
    if not isinstance(schema, dict):
        return None
    at = where or "the arguments"
    if "anyOf" in schema:
        found = [problem(value, one, where) for one in schema["anyOf"]]
        return None if None in found or not found else found[0]
    if "enum" in schema and value not in schema["enum"]:
        return f"{at}: expected one of {', '.join(map(repr, schema['enum']))}, found {value!r:.60}"
    names = schema.get("type", [])
    names = [names] if isinstance(names, str) else names
    if names and not any(_is(value, name) for name in names):
        return f"{at}: expected {' or '.join(names)}, found {value!r:.60}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if "minimum" in schema and value < schema["minimum"]:
            return f"{at}: expected {schema['minimum']} or more, found {value}"
        if "maximum" in schema and value > schema["maximum"]:
            return f"{at}: expected {schema['maximum']} or less, found {value}"
    if isinstance(value, str) and not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        return f"{at}: has {len(value)} characters, expected {schema.get('minLength', 0)} to {schema.get('maxLength', 'any number')}"
    if isinstance(value, list):
        for i, one in enumerate(value):
            found = problem(one, schema.get("items"), f"{where}[{i}]")
            if found:
                return found
    if isinstance(value, dict):
        known = schema.get("properties", {})
        for name in schema.get("required", []):
            if name not in value:
                return f"{at}: {name} is missing"
        for name, one in value.items():
            if name not in known and schema.get("additionalProperties") is False:
                return f"{at}: there is no {name[:60]!r}; expected {', '.join(known) or 'none'}"
            found = problem(one, known.get(name), f"{where}.{name}" if where else name)
            if found:
                return found
    return None
