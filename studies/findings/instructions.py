"""Fair eviction, whitelists and debiasing of instructions, text by text, and the tables of it:

    studies/make.sh instructions build/reproduction -o TABLE.csv

The folder holds what studies/reproduce.sh makes of texts whose system prompt is met by both
requests: results NAME.GROUP.nc of both for each of GROUPS, and closed loops NAME.GROUP.loop.nc. The
table has a row per order of the instructions (which is first), text, policy and budget, and there is
one for each of LENGTHS; the tables of studies/claims.md and studies/reproduction/pitfalls.md and the figures
instructions.png, fair_lengths.png and whitelist_lengths.png are made from them. A whitelisted sentence stands at other places in each text:
`whitelist=a-b` in the table. Losses of spans are those of studies/figures/losses.py, and so is what counts as
wrecked.
"""

import csv
import re
from itertools import chain

import matplotlib
import numpy as np

from kvsim.plots import load, statistics, style
from . import output, plan, plot, runs  # noqa: F401  (plot adds the figures of studies/figures)
from kvsim.plots.figures import losses

MEASURES = {
    "loss_directive": "what is missing of the directive's own importance, its own request",
    "loss_defense": "what is missing of the defense's, the request to leak",
    "stream_error": "rms over steps, mean over both requests",
    "kl_directive": "closed loop, answer that follows the directive, nats",
    "kl_leak": "closed loop, answer to the request to leak, nats",
    "keep_directive": "share of the directive's entries that is kept, mean over layers",
    "keep_defense": "the same of the defense",
}
REQUESTS = {"kl_directive": "asked to obey", "kl_leak": "asked to leak"}
BASES = ("snapkv,rounding=kvpress,window=64", "h2o,rounding=kvpress", "tova,rounding=kvpress", "knorm,rounding=kvpress", "streaming,rounding=kvpress")
CHANGES = {"constrain=fair": "fair", "whitelist=defense": "whitelist"}
CONSTRAINTS = {"constrain=fair": "fair eviction", "whitelist=defense": "keeping the defense whole"}
SENTENCE = "whitelist=a-b"   # of the defense, as findings/phrase.py finds it
ORDERS = ("defense", "directive")   # which comes first
# Record, what it is a constraint on: in the order of the table.
GUARDED = tuple(("snapkv,rounding=kvpress,window=64," + one, "snapkv,rounding=kvpress,window=64") for one in (
    "sinks=4,constrain=fair", "constrain=fair,fair_scores=default", "whitelist=defense,sinks=4"))
RANDOM = "random"
LAMBDAS = ("0", "0.2", "0.4", "0.6", "0.8", "1")
DEBIASED = ("snapkv,rounding=kvpress,window=64", "tova,rounding=kvpress", "streaming,rounding=kvpress")
GAIN_BUDGETS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
ALL_BUDGETS = (0.1, 0.2, *GAIN_BUDGETS)
LOOP_BUDGETS = (0.3, 0.5)                # of every record
TABLED = (0.1, 0.3, 0.5, 0.7, 0.9)        # of BASES, and with CHANGES where a whitelist fits
LEAST = 0.05                             # nats: what is smaller is no change
LOOPED = ("ratios", "whitelists")          # of all layers; of longer texts alone what is tabled
GROUPS = ("debias", "whitelist", "constraints", *LOOPED)
# Tokens that a prompt has at most, by its name in the tables; the first is the one that is drawn.
LENGTHS = {"500": 512, "2300": 2304, "8000": 8064}


def short(record):
    """A record without what makes it kvpress's form: all of this page are."""
    return record.replace(",rounding=kvpress", "").replace(",window=64", "")


def file_of(folder, length):
    """The table of a length."""
    return folder / f"instructions{'' if length == '500' else f'-{length}'}.csv"


def rows(folder, order, length):
    """A row per text, policy and budget of the texts of one order and one of LENGTHS."""
    seen = set()
    groups = GROUPS if length == "500" else LOOPED
    for wish in sorted(folder.glob(f"order_{order}_wish_{LENGTHS[length]}_*.{groups[0]}.nc")):
        seed = re.search(r"_(\d+)\.", wish.name).group(1)
        names = [f"order_{order}_{request}_{LENGTHS[length]}_{seed}" for request in ("wish", "leak")]
        pairs, loops = [], []
        for group in groups:
            files = [folder / f"{name}.{group}.nc" for name in names]
            if all(one.is_file() for one in files):
                pairs.append([load.open_results(one) for one in files])
                loops += [load.open_results(one) for name in names
                          for one in folder.glob(f"{name}.{group}.loop.nc")]
        load.join_loops([*chain(*pairs), *loops])
        for pair in pairs:
            for policy, budget, values in of_text(losses.of(pair), pair[0]):
                if (seed, policy, budget) not in seen:
                    seen.add((seed, policy, budget))
                    yield [order, seed, policy, budget, *values]


def of_text(lost, results):
    """(policy, budget, values of MEASURES) of one text below budget 1; `results` of either request,
    which meet the same cache."""
    damage = [lost.damage.get(one) for one in (losses.STREAM, *losses.REQUESTS)]
    kept = results.variable("keep_rate", "policy", "budget", "span", "layer").mean("layer")
    for policy in lost.policies:
        for budget in lost.budgets.tolist():
            if budget >= 1:
                continue
            at = {"policy": policy, "budget": budget}
            values = [*lost.values.sel(at).values[:, 0],
                      *(np.nan if one is None else float(one.sel(at).values[0]) for one in damage),
                      *(float(kept.sel({**at, "span": span})) for span in ("directive", "defense"))]
            yield (re.sub(r"whitelist=\d+-\d+", SENTENCE, policy), f"{budget:g}",
                   ["" if np.isnan(one) else f"{one:.5g}" for one in values])


class Table:
    """The rows of one order: arrays over texts by measure, policy and budget."""

    def __init__(self, path, order="defense"):
        self.order = order
        self.values = {}
        with path.open(encoding="utf-8") as file:
            listed = [row for row in csv.DictReader(file) if row["order"] == order]
        self.texts = sorted({row["text"] for row in listed})
        for row in listed:
            for measure in MEASURES:
                own = self.values.setdefault((measure, row["policy"], float(row["budget"])), {})
                own[row["text"]] = float(row[measure] or "nan")

    def get(self, measure, policy, budget):
        """[text]; NaN where it was not measured."""
        own = self.values.get((measure, policy, budget), {})
        return np.array([own.get(text, np.nan) for text in self.texts])

    def gain(self, policy, base, budget):
        return np.mean([self.get(one, base, budget) - self.get(one, policy, budget)
                        for one in ("loss_directive", "loss_defense")], axis=0)

    def wrecked(self, policy, base, budget):
        """[text]: where a constraint wrecks the cache (studies/figures/losses.py)."""
        error, own, chance = (self.get("stream_error", one, budget)
                              for one in (policy, base, RANDOM))
        return (error > losses.WRECK * own) & (error > chance)


def cell(values, form="{:.3f}", signed=False):
    """Mean with its interval over the texts that have it, where there are several."""
    values = values[np.isfinite(values)]
    if not values.size:
        return "-"
    mean, (low, high) = statistics.over_traces(values)
    form = form.replace(":", ":+") if signed else form
    if values.size < 2:
        return form.format(mean).replace("-", "−")
    return f"{form.format(mean)} [{form.format(low)}, {form.format(high)}]".replace("-", "−")


def at_budget(table, budget, bases=BASES):
    """Rows of one budget, of some policies: gain and what the cache as a whole loses, of what was replayed. What is
    of fewer texts than other rows is followed by their number."""
    listed = [(RANDOM, None)]
    for base in bases:
        changes = (*CHANGES, SENTENCE) if base in DEBIASED else CHANGES
        listed += [(base, None), *((f"{base},{change}", base) for change in changes)]
        listed += [one for one in GUARDED if one[1] == base]
    found = []
    costs = [({policy: table.get(measure, policy, budget) for policy, _ in listed}, form)
             for measure, form in (("stream_error", "{:.3f}"), ("kl_directive", "{:.2f}"),
                                   ("kl_leak", "{:.2f}"))]
    for policy, base in listed:
        if not np.isfinite(costs[0][0][policy]).any():
            continue
        bad = table.wrecked(policy, base, budget) if base else np.zeros(1, bool)
        found.append([
            f"`{short(policy)}`" + (" ×" if bad.mean() >= 0.5 else ""),
            cell(table.gain(policy, base, budget), signed=True) if base else "",
            *(with_texts(own[policy], len(table.texts), form) for own, form in costs),
            f"{bad.sum()} of {len(table.texts)}" if base else ""])
    return ["policy", "gain", "stream error", "loss, directive", "loss, leak",
            "texts wrecked"], found


def with_texts(values, texts, form, signed=False):
    """The same, and in brackets how many texts have it where that is fewer than `texts`."""
    count = np.isfinite(values).sum()
    return cell(values, form, signed) + (f" ({count})" if 0 < count < texts else "")


def keep_rates(tables, budgets=(0.3, 0.5, 0.7)):
    """Keep rates of defense / directive, by {length: {order: Table}}; `*`: the interval of their
    difference is without 0."""
    def both(table, policy, budget):
        defense, directive = (table.get(f"keep_{span}", policy, budget)
                              for span in ("defense", "directive"))
        low, high = statistics.over_traces(defense - directive)[1]
        return f"{defense.mean():.2f} / {directive.mean():.2f}" + ("*" if low > 0 or high < 0 else "")

    return (["order", "policy", *tables],
            [[f"{order} first", f"`{short(policy)}`",
              *(", ".join(both(own[order], policy, budget) for budget in budgets)
                for own in tables.values())] for order in ORDERS for policy in BASES])


def gains(table):
    """Mean gain over GAIN_BUDGETS and what it costs, by policy and constraint."""
    found = []
    for base in BASES:
        for change, name in CHANGES.items():
            policy = f"{base},{change}"
            every = np.array([table.gain(policy, base, budget) for budget in GAIN_BUDGETS])
            errors = [np.mean([table.get("stream_error", one, budget)
                               for budget in GAIN_BUDGETS], 0) for one in (base, policy)]
            bad = np.array([table.wrecked(policy, base, budget) for budget in GAIN_BUDGETS])
            spread = every.mean(1).std()
            mean, rest = cell(every.mean(0), signed=True).split(" ", 1)
            marked = [f"{one:g}" for one, is_bad in zip(GAIN_BUDGETS, bad.mean(1) >= 0.5) if is_bad]
            found.append([f"`{short(base)}`", name, f"{mean} ± {spread:.3f} {rest}", cell(errors[0]),
                          cell(errors[1]), ", ".join(marked) or "none"])
    return ["policy", "constraint", "gain", "stream error, itself", "constrained",
            "wrecked at budgets"], found


def changed(table, measure, base, change):
    """{budget: [text]}: by how much a constraint changes the loss with one request, where it was run
    and does not wreck the cache. Below 0 the model loses less."""
    policy = f"{base},{change}"
    found = {budget: table.get(measure, policy, budget) - table.get(measure, base, budget)
             for budget in ALL_BUDGETS if table.wrecked(policy, base, budget).mean() < 0.5}
    return {budget: own[np.isfinite(own)] for budget, own in found.items()
            if np.isfinite(own).sum() > 1}


def counted(tables):
    """`tables`: by length and order. Of BASES at TABLED budgets, without wrecked caches: where a
    constraint lowers the loss, where it raises it, and where neither is told."""
    found = []
    for order in ORDERS:
        for measure, request in REQUESTS.items():
            for change, name in CHANGES.items():
                row = [f"{order} first", request, name]
                for of_length in tables.values():
                    told = {"less": 0, "more": 0, "not told": 0}
                    for base in BASES:
                        every = changed(of_length[order], measure, base, change)
                        for own in (every[budget] for budget in TABLED if budget in every):
                            mean, (low, high) = statistics.over_traces(own)
                            told["not told" if low <= 0 <= high or abs(mean) < LEAST else
                                 "less" if mean < 0 else "more"] += 1
                    row.append(", ".join(str(one) for one in told.values()))
                found.append(row)
    return ["order", "asked", "constraint",
            *(f"{length}: less, more, not told" for length in tables)], found


def fronts(table):
    """How often each λ is Pareto-optimal over ALL_BUDGETS, and what it costs."""
    found = []
    for base in DEBIASED:
        grid = [f"{base},constrain=debias,debias_lambda={one}" for one in LAMBDAS]
        points = np.array([[[table.get(one, policy, budget)
                             for one in ("loss_directive", "loss_defense")] for policy in grid]
                           for budget in ALL_BUDGETS])   # [budget, λ, loss, text]
        moved = (points != points[:, :1]).any((1, 2))    # [budget, text]
        best = np.array([[losses.front(points[b, :, :, t]) for t in range(len(table.texts))]
                         for b in range(len(ALL_BUDGETS))]) & moved[..., None]
        for i, policy in enumerate(grid):
            bad = np.array([table.wrecked(policy, base, budget) for budget in ALL_BUDGETS])
            error = np.mean([table.get("stream_error", policy, one) for one in ALL_BUDGETS], 0)
            kl = [", ".join(number(table.get(measure, policy, one)) for one in LOOP_BUDGETS)
                  for measure in ("kl_directive", "kl_leak")]
            with np.errstate(invalid="ignore", divide="ignore"):
                share = best[..., i].sum(0) / moved.sum(0)
            found.append([
                f"`{short(base)}`" if i == 0 else "", LAMBDAS[i], cell(share, "{:.2f}"), cell(error), *kl,
                f"{bad.mean():.2f}" + (" ×" if bad.mean() >= 0.5 else ""),
                cell((best[..., i] & ~bad).sum(0) / moved.sum(0), "{:.2f}")])
    return ["policy", "λ", "optimal", "stream error", "loss, directive, 0.3 and 0.5",
            "loss, leak, 0.3 and 0.5", "wrecked", "optimal and not wrecked"], found


def number(values):
    values = values[np.isfinite(values)]
    return f"{values.mean():.2f}" if values.size else "-"


DRAWN = {"": "plain", "constrain=fair": "fair eviction", "whitelist=defense": "defense kept whole"}


def draw(tables):
    """Loss by budget, a row per order and request, a column per policy: itself, fair, whitelisted."""
    looks = {change: style.line_style(k) for k, change in enumerate(DRAWN)}
    fig, axes = style.frame(
        "What the model loses on either request",
        "KL divergence of the next-token distribution from the full cache's, on the written answer. Lower "
        f"is better. Mean over {len(tables[0].texts)} system prompts of about 500 tokens; bars: 95 % intervals (t). "
        f"{plan.MODEL}.",
        len(tables) * len(REQUESTS), len(BASES), 1.35,
        [style.key(name, looks[change]) for change, name in DRAWN.items()],
        (style.BUDGET, "loss, nats"), sharex=True, sharey=True)
    rows = [(table, *one) for table in tables for one in REQUESTS.items()]
    for i, (table, measure, request) in enumerate(rows):
        axes[i][0].set_ylabel(f"{table.order} first,\n{request}", fontsize=6)
        for ax, base in zip(axes[i], BASES):
            for change, look in looks.items():
                found = [table.get(measure, ",".join(filter(None, (base, change))), budget)
                         for budget in ALL_BUDGETS]
                known = [k for k, one in enumerate(found) if one.size > 1 and np.isfinite(one).all()]
                if known:
                    means, bands = statistics.over_traces(
                        np.stack([found[k] for k in known]))
                    ax.errorbar(np.array(ALL_BUDGETS)[known], means, np.abs(bands - means), **look)
            ax.set_title(base.split(",")[0] if i == 0 else "", fontsize=7)
    return fig


def draw_changes(tables, change):
    """`tables`: by length and order. A map per policy: change of the loss by budget, a row per order,
    request and length; a number where the change is LEAST at least, and a star where its interval is
    without 0, too."""
    rows = [(order, *one, length) for order in ORDERS for one in REQUESTS.items() for length in tables]
    fig, axes = style.frame(
        f"What {CONSTRAINTS[change]} changes, by length of the prompt",
        "Change of the KL divergence from the full cache on the written answer, nats, paired by text. Blue, below 0: "
        f"the model loses less. Numbers: changes of {LEAST} at least; *: the interval (95 %, t) is without 0. Grey: "
        f"a wrecked cache, or not run. {plan.MODEL}.", 1, len(BASES), 0.5 + 0.16 * len(rows), (),
        (style.BUDGET, "order, what is asked, tokens of the prompt"), sharey=True)
    colours = matplotlib.colormaps["RdBu_r"]
    for ax, base in zip(axes.flat, BASES):
        image = np.full((len(rows), len(TABLED), 4), (0.93, 0.93, 0.93, 1.0))
        for i, (order, measure, _, length) in enumerate(rows):
            own = changed(tables[length][order], measure, base, change)
            for k, budget in enumerate(TABLED):
                if budget not in own:
                    continue
                mean, (low, high) = statistics.over_traces(own[budget])
                image[i, k] = colours(np.clip(0.5 + mean / 4, 0.08, 0.92))
                if abs(mean) < LEAST:
                    continue
                told = "" if low <= 0 <= high else "*"
                ax.text(k, i, f"{mean:+.2f}{told}".replace("-", "−"), ha="center", va="center", fontsize=4.3,
                        color="white" if np.dot(image[i, k, :3], (0.299, 0.587, 0.114)) < 0.5 else "black")
        ax.imshow(image, aspect="auto", interpolation="nearest")
        ax.set(title=base.split(",")[0])
        ax.set_xticks(range(len(TABLED)), [f"{budget:g}" for budget in TABLED])
        ax.set_yticks(range(len(rows)), [f"{order} first, {request.removeprefix('asked to ')}, {length}"
                                         for order, _, request, length in rows], fontsize=5)
        ax.grid(False)
        ax.tick_params(length=0)
        for edge in range(len(tables), len(rows), len(tables)):
            ax.axhline(edge - 0.5, color="white", linewidth=2)
    return fig


def main():
    parser = output.parser(__doc__, "instructions", "DIR|TABLE.csv", "OUT")
    options = parser.parse_args()
    path = options.source
    if not path.is_file():
        found = {length: [row for order in ORDERS for row in rows(options.source, order, length)]
                 for length in LENGTHS}
        if not any(found.values()):
            parser.error(f"{options.source}: no results order_*_wish_*.nc of whitelists")
        for length, listed in found.items():
            if listed:
                runs.write(file_of(options.out, length),
                           [["order", "text", "policy", "budget", *MEASURES], *listed])
        path = file_of(options.out, "500")
    tables = {length: {order: Table(one, order) for order in ORDERS} for length in LENGTHS
              if (one := file_of(path.parent, length)).is_file()}
    if "500" in tables:
        output.save(options.out, "instructions", lambda: draw([*tables["500"].values()]), ("png",))
    for change, name in CHANGES.items():
        output.save(options.out, f"{name}_lengths", lambda: draw_changes(tables, change), ("png",))


if __name__ == "__main__":
    main()
