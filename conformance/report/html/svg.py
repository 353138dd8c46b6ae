"""SVG and HTML elements in which every text and every attribute is escaped. Colours are set by the page's CSS classes."""

from markupsafe import Markup, escape

from conformance.names import printable

Value = str | float | None


def element(name: str, *children: str, **attributes: Value) -> Markup:
    """Return the element `<name …>…</name>`.

    Args:
        name: name of the element.
        children: contents; texts are escaped, markup is not.
        attributes: attributes; of their Python names a trailing underscore is dropped and other underscores become hyphens.
            Attributes that are None are omitted.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(v))}"' for key, v in attributes.items() if v is not None
    )
    inner = "".join(escape(child if isinstance(child, Markup) else printable(child)) for child in children)
    return Markup(f"<{name}{written}>{inner}</{name}>")


def drawing(width: float, height: float, title: str, *children: str, **attributes: Value) -> Markup:
    """Return an SVG element that scales with its container; `title` is its text for screen readers."""
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
    """Return a text with unprintable characters escaped, or a number rounded to 0.01, which is finer than a screen's resolution."""
    if isinstance(value, str):
        return value if isinstance(value, Markup) else printable(value)
    return f"{value:.2f}".rstrip("0").rstrip(".")
