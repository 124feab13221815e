"""The one reader of XML, for XMP and GPX: with limits on elements, depth, the length of a tag, and encodings.

Document types are refused, since entities could make a document grow without limit.
"""

from __future__ import annotations

import re
from typing import Any, Protocol
from xml.parsers import expat

DEEPEST = 100
LONGEST_TAG = 2_000_000  # bytes, with its attributes; also of a comment
CHUNK = 1 << 16
ENCODINGS = re.compile(  # of text; others of Python's codecs decompress, or run code of a codec on the whole file
    r"utf-?8|utf-?16(le|be)?|us-ascii|ascii|latin-?1|iso-8859-\d{1,2}|windows-125\d|cp125\d|koi8-[ru]", re.IGNORECASE
)


class XmlError(ValueError):
    """XML that is malformed or beyond the limits.

    `damaged_at`: the byte at which it is malformed; None: it is beyond a limit. `encoding`: as `parse_xml` returns it.
    """

    def __init__(self, message: str, damaged_at: int | None = None, encoding: str | None = None) -> None:
        super().__init__(message)
        self.damaged_at = damaged_at
        self.encoding = encoding


class XmlTarget(Protocol):
    """What is told of a document in its order, as by `xml.etree.ElementTree.XMLParser`."""

    def start(self, tag: str, attrs: dict[str, str], /) -> object:
        """An element begins."""

    def end(self, tag: str, /) -> object:
        """It ends."""

    def data(self, data: str, /) -> object:
        """Text inside it; may come in pieces."""


def parse_xml(content: bytes, target: XmlTarget, *, most_elements: int, namespaces: bool = True) -> str | None:
    """Tell `target` the elements of a document; returns its declared encoding, None: UTF-8 or by its byte-order mark.

    namespaces: tags and attributes are called {namespace}name, else as they are written. The document is not kept in
    memory. Raises XmlError, also for an encoding that is not one of the common ones of text.
    """
    parser = expat.ParserCreate(namespace_separator="}" if namespaces else None)
    parser.buffer_text = True
    elements = depth = 0
    encoding: str | None = None

    def declared(version: str, name: str | None, standalone: int) -> None:
        nonlocal encoding
        if name is not None and not ENCODINGS.fullmatch(name):
            raise XmlError(f"its encoding is {name[:80]!r}, expected UTF-8 or UTF-16")
        encoding = name

    def refused(*_: Any) -> None:
        raise XmlError("it declares a document type")

    def begun(name: str, attributes: dict[str, str]) -> None:
        nonlocal elements, depth
        elements, depth = elements + 1, depth + 1
        if elements > most_elements or depth > DEEPEST:
            raise XmlError(f"it has more than {most_elements:,} elements or {DEEPEST} levels")
        if namespaces:
            attributes = {_full(key): value for key, value in attributes.items()}
            name = _full(name)
        target.start(name, attributes)

    def ended(name: str) -> None:
        nonlocal depth
        depth -= 1
        target.end(_full(name) if namespaces else name)

    parser.XmlDeclHandler = declared
    parser.StartDoctypeDeclHandler = refused
    parser.StartElementHandler, parser.EndElementHandler = begun, ended
    parser.CharacterDataHandler = target.data
    try:
        for at in range(0, len(content), CHUNK):
            parser.Parse(content[at : at + CHUNK], False)
            if at + CHUNK - parser.CurrentByteIndex > LONGEST_TAG:
                raise XmlError(f"a tag has more than {LONGEST_TAG:,} bytes")
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise XmlError(str(error), parser.ErrorByteIndex, encoding) from error
    except XmlError:
        raise
    except (LookupError, ValueError) as error:  # of the encoding
        raise XmlError(str(error)) from error
    return encoding


def _full(name: str) -> str:
    return f"{{{name}" if "}" in name else name
