"""Elements of SVG and HTML, written so that every text and every attribute is escaped. Colours are the page's classes."""

from markupsafe import Markup, escape

from conformance.names import printable

Value = str | float | None


def element(name: str, *children: str, **attributes: Value) -> Markup:
    """`<name …>…</name>`; a trailing underscore of a Python name is dropped, other underscores are hyphens; None is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(v))}"' for key, v in attributes.items() if v is not None
    )
    inner = "".join(escape(child if isinstance(child, Markup) else printable(child)) for child in children)
    return Markup(f"<{name}{written}>{inner}</{name}>")


def drawing(width: float, height: float, title: str, *children: str, **attributes: Value) -> Markup:
    """An SVG that scales with its box; `title` is what it says to those who do not see it."""
    return element(
        "svg",
        *children,
        viewBox=f"0 0 {_plain(width)} {_plain(height)}",
        width=width,
        height=height,
        role="img",
        aria_label=title,
        **attributes,
    )


def _plain(value: str | float) -> str:
    """Texts without control characters; numbers to a hundredth, finer than a screen."""
    if isinstance(value, str):
        return value if isinstance(value, Markup) else printable(value)
    return f"{value:.2f}".rstrip("0").rstrip(".")
