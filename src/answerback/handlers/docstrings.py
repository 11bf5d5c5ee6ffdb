"""What a docstring says about a tool: its description, and one sentence per argument.

docstring-parser recognises the google, numpy and sphinx styles by itself.
"""

from __future__ import annotations

import inspect

import docstring_parser
import msgspec


class DocstringFacts(msgspec.Struct, frozen=True):
    """The text without its argument, return and raise sections, and the arguments' descriptions by name."""

    description: str
    arguments: dict[str, str]


def read_docstring(text: str | None) -> DocstringFacts:
    """Split a docstring; one that no style can read is kept whole as the description."""
    cleaned = inspect.cleandoc(text or "")
    if not cleaned:
        return DocstringFacts("", {})
    try:
        parsed = docstring_parser.parse(cleaned)
    except docstring_parser.ParseError:
        return DocstringFacts(cleaned, {})
    arguments = {
        param.arg_name.lstrip("*"): param.description.strip()
        for param in parsed.params
        if param.description and param.description.strip()
    }
    return DocstringFacts((parsed.description or "").strip(), arguments)
