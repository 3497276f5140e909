"""The one look of all figures.

Every line differs in colour, dash pattern and marker, so that a figure survives a black-and-white printer and a
colour-blind reader. A figure is as wide as what it is for (WIDTHS); its texts have the same size in all of them."""

import functools
import math
import textwrap
from pathlib import Path

import matplotlib
import numpy as np
import pandas

matplotlib.use("Agg")  # no window, whatever the machine

import matplotlib.pyplot as plt  # noqa: E402  (the backend must be chosen first)
from matplotlib.layout_engine import ConstrainedLayoutEngine  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402

from ..plain import counted, csv_text  # noqa: E402
from ..whole import whole_file  # noqa: E402
from . import load, looks  # noqa: E402
from .axes import (BUDGET, budget_axis, budget_label, error_axis, legible,  # noqa: E402, F401
                   log_ticks, say_log, slanted_ticks)

# Inches. A column and a page of two columns are those of ICML (3.25 and 6.75); ACM's (3.33, 7.0) and
# IEEE's (3.5, 7.16) have room for both.
WIDTHS = {"screen": 7.2, "column": 3.25, "page": 6.75}
NARROW_HEIGHT = 0.75   # of a panel that stands above another one
NARROW = 5             # inches: below it panels stand one above the other
PAD = 0.04           # inches around everything that the layout places
MOST_LINES = 10      # more lines than this in one panel cannot be told apart
REFERENCE = "0.45"   # grey of reference lines
DOTTED = {"color": "black", "linewidth": 0.7, "linestyle": ":"}   # of what a line is compared with

# Of what is not a policy: spans, estimators, settings. Policies have theirs in looks.py.
COLOURS = tuple(looks.COLOURS[k][0] for k in (4, 10, 5, 7, 0, 6, 3, 11, 1, 8))


def use(width="screen"):
    """Begins figures of one of WIDTHS."""
    matplotlib.rcdefaults()  # a matplotlibrc on the user's machine must not change the figures
    matplotlib.rcParams.update(matplotlib.rc_params_from_file(
        Path(__file__).with_name("kvsim.mplstyle"), use_default_template=False))
    matplotlib.rcParams["figure.figsize"] = (WIDTHS[width], 3)


def width():
    """Of a figure, in inches."""
    return matplotlib.rcParams["figure.figsize"][0]


def characters(of_screen):
    """How many stand beside each other where there is room for `of_screen` in the widest figure."""
    return round(of_screen * width() / WIDTHS["screen"])


def wrapped_lines(text, most, **how):
    """The lines of a text, each broken at `most` characters."""
    return "\n".join(part for line in text.split("\n") for part in textwrap.wrap(line, most, **how))


def line(colour, dash, marker):
    """Keyword arguments of plot() for a line."""
    return {"color": colour, "linestyle": (0, dash) if dash else "-", "marker": marker,
            "markeredgewidth": 0.3, "markeredgecolor": "white"}


def line_style(index):
    """Does it for the line with this index, of anything but policies. Colours come again after
    ten, with another dash pattern and marker."""
    again, k = divmod(index, len(COLOURS))
    return line(COLOURS[k], looks.DASHES[(k + 3 * again) % len(looks.DASHES)],
                looks.MARKERS[(k + again) % len(looks.MARKERS)])


def mark_style(index):
    """Keyword arguments of plot() for the marks of the trace with this index."""
    return {"color": COLOURS[index % 10], "marker": looks.MARKERS[index % 10], "markersize": 3,
            "linestyle": "", "fillstyle": "full" if index < 10 else "none", "markeredgewidth": 0.4}


def policy_looks(records):
    """{record: keyword arguments of plot()} of policies that are drawn or run together."""
    own = looks.of(tuple(one for one in records if not load.is_full(one)))
    full = {"color": REFERENCE, "linestyle": "-", "linewidth": 0.8, "marker": "", "zorder": 1}
    return {one: full if load.is_full(one) else
            line(looks.COLOURS[own[one].colour][0], looks.DASHES[own[one].dash],
                 looks.MARKERS[own[one].marker]) for one in records}


def policy_style(results, record):
    """How a policy of a results file is drawn, in every figure of it."""
    return policy_looks(results.run_policies)[record]


#: Of a policy that is one of many, and named by none.
OTHERS = {"color": "0.82", "linestyle": "-", "linewidth": 0.6, "marker": "", "zorder": 0.8}


def leaders(results, policies):
    """The policies that get lines of their own: all, or the MOST_LINES with the least stream error,
    geometric mean over budgets, without stream errors the first; `full` is none of them."""
    rivals = [one for one in policies if not load.is_full(one)]
    if len(rivals) <= MOST_LINES:
        return rivals
    if results.has("stream_error_rms"):
        error = results.variable("stream_error_rms", "policy", "budget").sel(policy=rivals)
        means = np.log(error.where(error > 0)).mean("budget").fillna(np.inf).values
        first = set(np.argsort(means, kind="stable")[:MOST_LINES])
        return [one for place, one in enumerate(rivals) if place in first]
    return rivals[:MOST_LINES]


def line_looks(results, policies):
    """{policy: look} of lines in one panel: leaders in their own, `full` as a reference, others grey."""
    own = {*leaders(results, policies), *filter(load.is_full, policies)}
    return {one: policy_style(results, one) if one in own else OTHERS for one in policies}


def groups(listed, size):
    """Groups of nearly equal size and at most `size`."""
    count = max(1, math.ceil(len(listed) / size))
    bounds = [round(k * len(listed) / count) for k in range(count + 1)]
    return [listed[a:b] for a, b in zip(bounds, bounds[1:])]


def spread(listed, most):
    """At most so many of a list, evenly spread from its first to its last."""
    places = np.linspace(0, len(listed) - 1, min(most, len(listed)))
    return [listed[round(place)] for place in places]


def pages(figure, groups, draw):
    """{file name: function that draws it} of each group; calls draw(group, note for the title)."""
    if len(groups) == 1:
        return {figure: functools.partial(draw, groups[0], "")}
    return {f"{figure}-{i}": functools.partial(draw, group, f" ({i} of {len(groups)})")
            for i, group in enumerate(groups, start=1)}


def wrapped(record, most=34):
    """A long record over several lines, broken after commas only."""
    most = most if width() > NARROW else min(most, 20)
    spaced = textwrap.wrap(record.replace(",", ", "), most, break_long_words=False, break_on_hyphens=False)
    return "\n".join(line.replace(", ", ",") for line in spaced)


def key(label, style, values=0.0):
    """A legend entry: a line of `style` named `label`; says so when all its values are NaN."""
    undefined = " (undefined)" if np.isnan(values).all() else ""
    return Line2D([], [], label=wrapped(label) + undefined, **style)


def panel_grid(count, most_columns):
    """Rows and columns for `count` panels, without a nearly empty last row."""
    if width() < NARROW:
        most_columns = min(2, math.ceil(most_columns * width() / WIDTHS["screen"]))
    columns = min(count, most_columns)
    rows = math.ceil(count / columns)
    return rows, math.ceil(count / rows)


def frame(title, subtitle, rows, columns, panel_height, keys=(), labels=("", ""), **subplots):
    """A figure with title and subtitle above `rows` x `columns` panels and the legend below.

    `labels` are the x and y label that all panels share; `panel_height` is in inches. Returns the figure and a 2-D
    array of axes, `rows` x `columns`; in a narrow figure the panels of a single row stand in several."""
    across = columns
    if width() < NARROW and rows == 1 and columns > 1:
        across = 2 if columns > 2 and columns % 2 == 0 else 1
        panel_height *= NARROW_HEIGHT
        # Panels of one row share an axis only where they show the same.
        subplots = {name: shared for name, shared in subplots.items() if shared not in ("row", "col")}
    down = rows * columns // across
    fig = plt.figure(figsize=(width(), down * panel_height), layout="constrained")
    fig.get_layout_engine().set(w_pad=PAD, h_pad=PAD, wspace=0.02, hspace=0.03)
    # Around the panels, so that a shared label and the legend both have room of their own.
    panels = fig.subfigures()
    left = {"x": 0.06 / width(), "ha": "left"}
    around = [fig.suptitle(title, fontsize=9, fontweight="bold", **left),
              panels.suptitle(subtitle, fontsize=7, color="0.3", **left)]
    for text, most in zip(around, (characters(110), characters(138))):
        whole = text.get_text()   # broken there, or before it leaves the figure
        text.set_text(wrapped_lines(whole, most))
        while most > 9 and text.get_window_extent().width > (width() - 0.12) * fig.dpi:
            most -= 1
            text.set_text(wrapped_lines(whole, most))
    if labels[0]:
        around.append(panels.supxlabel(labels[0]))
    if labels[1]:
        panels.supylabel(labels[1])
    keys = list(keys)
    for lines in range(1, len(keys) + 1):   # of the legend: as few as there is room for
        legend = fig.legend(handles=keys, loc="outside lower center",
                            ncols=math.ceil(len(keys) / lines), columnspacing=1.6, labelspacing=0.4)
        if lines == len(keys) or legend.get_window_extent().width <= fig.bbox.width:
            around.append(legend)
            break
        legend.remove()
    heights = [part.get_window_extent().height / fig.dpi + 2 * PAD for part in around]
    fig.set_size_inches(width(), down * panel_height + sum(heights))
    return fig, panels.subplots(down, across, squeeze=False, **subplots).reshape(rows, columns)


def panels(title, subtitle, count, most_columns, height, keys=(), labels=("", ""), **subplots):
    """A frame of `count` panels in rows of at most so many; the figure and a list of its axes."""
    rows, columns = panel_grid(count, most_columns)
    fig, axes = frame(title, subtitle, rows, columns, height, keys, labels, **subplots)
    hide_unused(axes, count)
    return fig, list(axes.flat[:count])


def row_labels(policies):
    """Labels for rows of policies, their font size, and the height of a row in inches."""
    labels, lines = titles(policies, 34)
    return labels, 6 if lines == 1 else 5.5, max(0.165, 0.04 + 0.085 * lines)


def titles(policies, most):
    """Titles of a panel for each policy, and of how many lines the longest is."""
    found = [wrapped(policy, most) for policy in policies]
    return found, max(title.count("\n") + 1 for title in found)


def dot_panels(results, policies, title, about, values_of, most_columns):
    """The panels of `budget_panels` where there is one budget: a row per policy, with a dot."""
    labels, size, row = row_labels(policies)
    fig, axes = panels(f"{title} at budget {results.budget_text(results.budgets[0])}",
                       results.subtitle + about, len(values_of), most_columns, 0.7 + row * len(policies), sharey=True)
    for ax, (text, values) in zip(axes, values_of.items()):
        for y, policy in enumerate(policies):
            look = policy_style(results, policy)
            ax.plot(values.sel(policy=policy), [y], color=look["color"], marker=look["marker"] or "o")
        colour_rows(ax, results, policies, labels, size)
        ax.set(ylim=(len(policies) - 0.5, -0.5), title=text)
    return fig, axes


def error_shades(errors):
    """Shades of errors in maps, the same for a number in all of them: 0 up to 0.001, 1 from 1 on."""
    return 1 + np.log10(np.clip(errors, 1e-3, 1)) / 3


def number_map(ax, values, shades, darkest, text, missing="–", size=5.2, bold=()):
    """Cells with their numbers, as text(value) writes them. Columns of `values` that `shades` lacks stand
    apart, in bold, as are the numbers `bold`."""
    rows, columns = shades.shape
    colours = matplotlib.colormaps["Blues"]
    image = colours(np.clip(np.nan_to_num(shades) / darkest, 0, 1))
    image[np.isnan(shades)] = (0.93, 0.93, 0.93, 1) if missing else (1, 1, 1, 1)
    ax.imshow(image, aspect="auto", interpolation="nearest")
    for i in range(rows):
        for k in range(values.shape[1]):
            dark = k < columns and np.dot(image[i, k, :3], (0.299, 0.587, 0.114)) < 0.5
            ax.text(k, i, missing if np.isnan(values[i, k]) else text(values[i, k]),
                    ha="center", va="center", fontsize=size, color="white" if dark else "black",
                    fontweight="normal" if k < columns and values[i, k] not in bold else "bold")
    ax.set_xlim(-0.5, values.shape[1] - 0.5)
    ax.grid(False)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)


def hide_unused(axes, count):
    """Takes away the panels of a grid after the first `count`; those above them show x themselves."""
    for ax in axes.flat[max(0, count - axes.shape[1]):count]:
        ax.xaxis.set_tick_params(labelbottom=True)
    for ax in axes.flat[count:]:
        ax.remove()


def budget_panels(results, policies, title, about, values_of, most_columns, height, ylabel="", keys=()):
    """A panel for each of {title: values [policy, budget]} with a line per policy over the budget; the
    figure, and its axes in this order. `keys` stand behind those of the policies."""
    fig, axes = panels(title, results.subtitle + about, len(values_of), most_columns, height,
                       [*policy_keys(results, policies), *keys], (budget_label(results), ylabel), sharex=True)
    for ax, (text, values) in zip(axes, values_of.items()):
        budget_lines(ax, results, policies, values)
        most = characters(114) // panel_grid(len(values_of), most_columns)[1]
        ax.set_title(wrapped_lines(text, most, max_lines=3, placeholder=" …"))
    return fig, axes


def budget_lines(ax, results, policies, values):
    """A line per policy of `values` [policy, budget] over the budget."""
    values = values.sortby("budget")   # the file has them as they were typed
    looks = line_looks(results, policies)
    for policy in policies:
        ax.plot(values.budget, values.sel(policy=policy), **{"zorder": 2, **looks[policy]})
    if values.isnull().all():
        note_undefined(ax)
    budget_axis(ax, results)


def colour_rows(ax, results, policies, labels, size):
    """Labels of rows in the colours of their policies."""
    ax.set_yticks(range(len(labels)), labels, fontsize=size)
    for text, policy in zip(ax.get_yticklabels(), policies):
        text.set_color(policy_style(results, policy)["color"])


def policy_keys(results, policies, values=None):
    """Legend entries; a policy whose `values` [policy, ...] are all NaN is said to be undefined. Grey
    lines have one for all."""
    looks = line_looks(results, policies)
    own = [one for one in policies if looks[one] is not OTHERS]
    keys = [key(policy, looks[policy], 0.0 if values is None else values.sel(policy=policy)) for policy in own]
    left = len(policies) - len(own)
    return keys + ([key(counted(left, "other"), OTHERS)] if left else [])


def band(ax, x, interval, look, drawn=True):
    """The interval (low, high) of a line, in its colour; narrow rules keep it visible in grey."""
    if drawn:
        ax.fill_between(x, *interval, color=look["color"], alpha=0.18, linewidth=0, zorder=1)
        for edge in interval:
            ax.plot(x, edge, color=look["color"], linewidth=0.4, zorder=1.5)


def over_budgets(ax, budgets, policies, bands, found):
    """A line per policy, the bands of some. found(policy, budget): (mean, low, high, ...) or None."""
    looks, ends = policy_looks(policies), []
    for policy in policies:
        points = [(budget, one[:3]) for budget in budgets if (one := found(policy, budget)) is not None]
        if not points:
            continue
        at = [budget for budget, _ in points]
        mean, low, high = np.array([one for _, one in points]).T
        ax.plot(at, mean, **{**looks[policy], "linewidth": 1.3})
        band(ax, at, (low, high), looks[policy], policy in bands)
        ends.append((at[-1], mean[-1], policy, looks[policy]["color"]))
    ax.set(xscale="log", yscale="log")
    log_ticks(ax.yaxis, 6)
    ax.set_xticks(budgets, [f"{b:g}" for b in budgets])
    ax.minorticks_off()
    end_labels(ax, ends)


def end_labels(ax, ends):
    """Names beside the right ends of lines, in their colours, moved apart where they would overlap.

    `ends`: (x, y, name, colour) of each line's last point. Placed when the figure is saved, as all axes
    have their limits then."""
    figure = ax.figure.figure or ax.figure
    figure.kvsim_ends = [*getattr(figure, "kvsim_ends", ()), (ax, ends)]


def _place_ends(figure, ax, ends):
    ends = sorted((one for one in ends if np.isfinite(one[1])), key=lambda one: one[1])
    if not ends:
        return
    figure.draw_without_rendering()
    high = ax.get_window_extent().height
    to_axes = ax.transData + ax.transAxes.inverted()
    own = np.array([to_axes.transform((x, y))[1] for x, y, _, _ in ends])
    names = [wrapped(name) for _, _, name, _ in ends]
    size = matplotlib.rcParams["legend.fontsize"]
    line = 1.3 * size * figure.dpi / 72 / high
    places = apart(own, [line * (1 + name.count("\n")) for name in names])
    for (x, y, _, colour), name, place in zip(ends, names, places):
        ax.annotate(name, (x, y), (1.035, place), textcoords="axes fraction", va="center",
                    fontsize=size, color=colour, annotation_clip=False,
                    arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "shrinkA": 0,
                                "shrinkB": 2.5, "relpos": (0, 0.5)})


def apart(places, sizes):
    """Ascending places, moved as little as possible (least squares) until what lies there, each
    `sizes` long, does not overlap."""
    from scipy import optimize   # takes longer to load than most figures to draw

    sizes = np.broadcast_to(sizes, len(places))
    before = np.concatenate([[0], np.cumsum((sizes[:-1] + sizes[1:]) / 2)])[:len(places)]
    return optimize.isotonic_regression(places - before).x + before


def note_undefined(ax):
    """Says in words that a panel is empty because its values are undefined, not by mistake."""
    ax.text(0.5, 0.5, "undefined", transform=ax.transAxes, ha="center", va="center",
            color=REFERENCE, bbox={"facecolor": "white", "edgecolor": "none"})


def numbers(fig, header, rows):
    """Gives a figure the numbers that `--formats csv` writes beside it."""
    fig.kvsim_numbers = pandas.DataFrame(rows, columns=header)


def settle(fig):
    """Fixes the layout, rounded: the solver's last bits depend on the order of hashes.

    No engine stays, for whose sake every file would be drawn twice."""
    if isinstance(fig.get_layout_engine(), ConstrainedLayoutEngine):
        fig.draw_without_rendering()
        if width() < NARROW:
            for ax in fig.axes:   # titles that are wider than their panels
                text, room = ax.get_title(), ax.get_window_extent().width
                wide = ax.title.get_window_extent().width
                if wide > room:
                    most = int(max(map(len, text.split("\n"))) * room / wide)
                    ax.set_title(wrapped_lines(text, max(8, most)), fontsize=ax.title.get_fontsize())
            fig.draw_without_rendering()
        fig.set_layout_engine(None)
        for box in [panels.bbox_relative for panels in fig.subfigs]:
            box.set_points(np.round(box.get_points(), 6))
        for ax in fig.axes:
            ax.set_position(np.round(ax.get_position().bounds, 6))


def save(fig, path):
    """Writes `fig` without any time stamp, so that the same results give the same bytes.

    False when there is nothing to write: a CSV file of a figure without numbers of its own."""
    kind = path.suffix[1:]
    stamps = {"pdf": {"Creator": "kvsim", "Producer": None, "CreationDate": None}, "png": {"Software": None}}
    if kind == "csv" and not hasattr(fig, "kvsim_numbers"):
        return False
    with whole_file(path) as temporary:
        if kind == "csv":
            temporary.write_text(csv_text(fig.kvsim_numbers, None, "nan"), encoding="utf-8")
        else:
            say_log(fig)
            for ends in fig.__dict__.pop("kvsim_ends", ()):
                _place_ends(fig, *ends)
            settle(fig)
            fig.savefig(temporary, format=kind, metadata=stamps[kind])
    return True
