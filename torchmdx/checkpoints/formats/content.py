"""What a file is that is not a checkpoint, from its content, for error messages."""

from __future__ import annotations

MAGIC = (
    (b"\x1f\x8b", "a gzip archive; unpack it first"),
    (b"BZh", "a bzip2 archive; unpack it first"),
    (b"\xfd7zXZ\x00", "an xz archive; unpack it first"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"\x93NUMPY", "an array of NumPy"),
    (b"\x89PNG\r\n\x1a\n", "a picture (PNG)"),
    (b"%PDF", "a PDF document"),
)
MOST_SHOWN = 40  # characters of a text


def kind_of(content: bytes) -> str | None:
    """The kind of a file that cannot be a checkpoint, as "an empty file"; None if it may be one."""
    if not content:
        return "an empty file"
    for start, kind in MAGIC:
        if content.startswith(start):
            return kind
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    if not all(letter.isprintable() or letter in "\n\r\t\f" for letter in text[:1000]):
        return None
    if text.startswith("version https://git-lfs"):
        return "a pointer of Git LFS; `git lfs pull` fetches the file itself"
    if text.lstrip().lower().startswith(("<!doctype html", "<html")):
        return "a web page (HTML); download the file itself, not the page about it"
    first = text.strip().split("\n")[0]
    return f"a text file that begins with {first[:MOST_SHOWN]!r}"
