"""Widths of figures, and what fits into them."""

import textwrap

import matplotlib

# Inches. A column and a page of two columns are those of ICML (3.25 and 6.75); ACM's (3.33, 7.0) and
# IEEE's (3.5, 7.16) have room for both.
WIDTHS = {"screen": 7.2, "column": 3.25, "page": 6.75}
NARROW_HEIGHT = 0.75   # of a panel that stands above another one
NARROW = 5           # inches: below it panels stand one above the other


def width():
    """Of a figure, in inches."""
    return matplotlib.rcParams["figure.figsize"][0]


def characters(of_screen):
    """How many stand beside each other where there is room for `of_screen` in the widest figure."""
    return round(of_screen * width() / WIDTHS["screen"])


def wrapped_lines(text, most, **how):
    """The lines of a text, each broken at `most` characters."""
    return "\n".join(part for line in text.split("\n") for part in textwrap.wrap(line, most, **how))


def break_lines(text, most):
    """Breaks the lines of a text above the panels at `most` characters, or before they leave the figure."""
    whole = text.get_text()
    while most > 8:
        text.set_text(wrapped_lines(whole, most))
        if text.get_window_extent().width <= (width() - 0.12) * text.figure.dpi:
            return
        most -= 1


def fit_titles(fig):
    """Breaks titles that are wider than their panels."""
    fig.draw_without_rendering()
    for ax in fig.axes:
        text, room = ax.get_title(), ax.get_window_extent().width
        wide = ax.title.get_window_extent().width
        if wide > room:
            most = int(max(map(len, text.split("\n"))) * room / wide)
            ax.set_title(wrapped_lines(text, max(8, most)), fontsize=ax.title.get_fontsize())
