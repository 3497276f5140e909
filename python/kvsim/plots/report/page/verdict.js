/** The table of policies by budget, and the same as curves. */

const MOST_CURVES = 14;   // that are drawn unasked

/** @type {Set<string>} policies whose curve is switched off */
const hidden = new Set();

/** Of many policies only the best are drawn at first; A and B always are. */
function hideMost() {
  const order = sortedPolicies();
  if (order.length > MOST_CURVES)
    for (const p of order.slice(MOST_CURVES - 2)) hidden.add(content.verdict.policies[p]);
}

/** @param {string} policy */
function isHidden(policy) {
  const own = trace().policies.indexOf(policy);
  return hidden.has(policy) && !(own >= 0 && (own === state.policy || own === state.vs));
}

/** @returns {VerdictMeasure} */
function verdictMeasure() {
  return content.verdict.measures.find((one) => one.id === state.measure) || content.verdict.measures[0];
}

/**
 * Rows in the order that `state.sort` asks for: a budget, `policy`, or either behind a minus for the other way. Unasked
 * the best first, and last those that hold another share, lose nothing, or score all entries alike.
 */
function sortedPolicies() {
  const measure = verdictMeasure(), verdict = content.verdict;
  if (!measure) return d3.range(verdict.policies.length);
  const reverse = state.sort.startsWith("-"), key = reverse ? state.sort.slice(1) : state.sort;
  const order = d3.range(verdict.policies.length);
  const turn = reverse ? -1 : 1;
  if (key === "policy") {
    return order.sort((/** @type {number} */ a, /** @type {number} */ b) =>
      turn * d3.ascending(verdict.policies[a], verdict.policies[b]));
  }
  const column = budgetColumn(key);
  const sign = turn * (measure.better === "high" ? -1 : 1);
  return order.sort((/** @type {number} */ a, /** @type {number} */ b) => {
    const x = measure.values[a][column], y = measure.values[b][column];
    const apart = key ? 0 : Number(verdict.apart[a][column]) - Number(verdict.apart[b][column]);
    if (apart) return apart;
    return x === null ? (y === null ? a - b : 1) : y === null ? -1 : sign * (x - y) || a - b;
  });
}

/**
 * The column of a budget in the verdict; that of the chosen one without.
 * @param {string} [label]
 */
function budgetColumn(label) {
  const labels = content.verdict.budgets.map((one) => one.label);
  const found = label ? labels.indexOf(label) : -1;
  return found >= 0 ? found : Math.max(0, labels.indexOf(trace().budgets[state.budget]));
}

function drawVerdict() {
  const verdict = content.verdict, measure = verdictMeasure();
  at("verdict-heading").parentElement.hidden = !measure;
  if (!measure) return;
  fill("measure", verdict.measures.map((one) => ({value: one.id, text: optionText(one)})), measure.id);
  at("verdict-lead").textContent = leadText(measure);
  const order = sortedPolicies();
  const head = make("tr", {}, headCell("policy", "Policy"),
                    ...verdict.budgets.map((one) => headCell(one.label, one.label)));
  const body = make("tbody");
  for (const p of order) body.append(verdictRow(measure, p));
  at("verdict").replaceChildren(make("caption", {class: "readout"}, captionText(measure)),
                                make("thead", {}, head), body);
  showChosenRow();
  drawCurves(measure, order);
}

/** Where the table has more rows than its box shows, policy A is among those that are seen. */
function showChosenRow() {
  const table = at("verdict"), box = table.parentElement, row = table.querySelector("td.chosen")?.parentElement;
  if (!row || box.scrollHeight <= box.clientHeight) return;
  const top = row.offsetTop - table.tHead.offsetHeight, end = row.offsetTop + row.offsetHeight;
  if (top < box.scrollTop || end > box.scrollTop + box.clientHeight)
    box.scrollTop = top - (box.clientHeight - row.offsetHeight) / 2;
}

/** @param {Named & {fold?: string}} one */
function measureText(one) {
  return one.unit && one.unit !== "1" ? `${one.label} (${one.unit})` : one.label;
}

/**
 * With the variable of the results file behind it.
 * @param {Named & {variable?: string}} one
 */
function optionText(one) {
  return `${measureText(one)} [${one.variable ?? one.id}]`;
}

/** @param {VerdictMeasure} measure */
function leadText(measure) {
  const parts = [];
  if (measure.variable.startsWith("kl_divergence")) {
    parts.push("What the model itself lost when it ran with the kept sets.");
  } else if (measure.variable === "stream_error_rms") {
    parts.push("Of the replay's measures, stream error follows best what a model loses that runs with the kept sets.");
  }
  if (measure.better !== "none") {
    const apart = content.verdict.hindsight.some(Boolean) ? " without hindsight" : "";
    parts.push(`${measure.better === "high" ? "Higher" : "Lower"} is better; a star marks the best${apart}.`);
    const marks = new Set(measure.marks.flat());
    if (marks.has("equal")) parts.push("~ cannot be told apart from it.");
    if (marks.has("more") || marks.has("less"))
      parts.push("> holds over a twentieth more than the budget gives, < less: these are not ranked there.");
  }
  parts.push("Click a number to look at that policy and budget.");
  return parts.join(" ");
}

/** @param {VerdictMeasure} measure */
function captionText(measure) {
  const count = content.verdict.traces.length;
  if (!measure.low) return "";
  return count > 1 ? `Means over ${count} traces, of errors and losses geometric; below them 95 % intervals over traces (t).`
    : "Below the numbers 95 % intervals over the later steps, in circular blocks.";
}

/** @param {string} key @param {string} text */
function headCell(key, text) {
  const sorted = state.sort === key ? "ascending" : state.sort === `-${key}` ? "descending" : "none";
  const mark = sorted === "ascending" ? " ▲" : sorted === "descending" ? " ▼" : "";
  const button = make("button", {type: "button", title: `Sort by ${key === "policy" ? "name" : `budget ${text}`}`}, text + mark);
  button.addEventListener("click", () => choose({sort: state.sort === key ? `-${key}` : key}));
  return make("th", {scope: "col", "aria-sort": sorted, "data-key": key}, button);
}

/** @param {VerdictMeasure} measure @param {number} p */
function verdictRow(measure, p) {
  const policy = content.verdict.policies[p], here = trace(), own = here.policies.indexOf(policy);
  const toggle = make("button", {type: "button", title: `Curve of ${policy} on or off`,
                                 "aria-pressed": String(!isHidden(policy))}, keyOf(policy));
  toggle.addEventListener("click", () => {
    if (!hidden.delete(policy)) hidden.add(policy);
    redraw();
  });
  const name = make("button", {type: "button", title: "Look at this policy"}, policy);
  name.addEventListener("click", () => own >= 0 && choose({policy: own}));
  const head = make("th", {scope: "row", class: isHidden(policy) ? "off" : ""}, toggle, name, " ");
  if (own === state.policy) head.append(make("span", {class: "badge a"}, "A"), " ");
  if (own === state.vs && own >= 0) head.append(make("span", {class: "badge b"}, "B"), " ");
  if (content.verdict.hindsight[p]) head.append(make("small", {title: "It sees the later queries."}, "hindsight"));
  const cells = measure.values[p].map((value, b) => verdictCell(measure, p, b, value));
  return make("tr", {"data-policy": policy}, head, ...cells);
}

/** @param {VerdictMeasure} measure @param {number} p @param {number} b @param {number|null} value */
function verdictCell(measure, p, b, value) {
  const verdict = content.verdict, here = trace(), mark = measure.marks[p][b];
  const own = here.policies.indexOf(verdict.policies[p]), budget = here.budgets.indexOf(verdict.budgets[b].label);
  const classes = [mark];
  if (budget === state.budget && own >= 0) classes.push(own === state.policy ? "chosen" : own === state.vs ? "beside" : "");
  const cell = make("td", {class: classes.join(" "), tabindex: "-1"}, number(value));
  if (mark === "more" || mark === "less")
    cell.title = `It holds ${number(verdict.held[p][b])} times what the budget gives (entries or bytes), and is not ranked here. ${measure.equal[p][b]}`;
  const low = measure.low?.[p][b], high = measure.high?.[p][b];
  if (low !== null && low !== undefined) cell.append(make("small", {}, `${number(low)} – ${number(high)}`));
  cell.addEventListener("click", () => own >= 0 && budget >= 0 && choose({policy: own, budget}));
  return cell;
}

/** @param {VerdictMeasure} measure @param {number[]} order */
function drawCurves(measure, order) {
  const verdict = content.verdict, host = at("curves");
  const columns = d3.range(verdict.budgets.length).sort(
    (/** @type {number} */ a, /** @type {number} */ b) => verdict.budgets[a].ratio - verdict.budgets[b].ratio);
  const shown = order.filter((p) => !isHidden(verdict.policies[p]));
  const values = shown.flatMap((p) => columns.flatMap((/** @type {number} */ b) =>
    [measure.values[p][b], measure.low?.[p][b] ?? null, measure.high?.[p][b] ?? null].filter((value) => value !== null)));
  const ratios = columns.map((/** @type {number} */ b) => verdict.budgets[b].ratio);
  const single = ratios.length < 2;
  const x = d3.scaleLinear().domain(single ? [ratios[0] - 0.1, ratios[0] + 0.1] : d3.extent(ratios));
  const y = valueScale(/** @type {number[]} */ (values));
  const {svg, inner} = frame(host, {height: 340, x, y, title: measureText(measure) + (y.base ? ", log scale" : ""), xTicks: ratios,
                             xFormat: (value) => d3.format(".3~g")(value), label: `${measure.label} by budget`,
                             xLabel: "budget (fraction of the prompt kept)"});
  const chosen = trace().ratios[state.budget];
  svg.append("line").attr("class", "cursor").attr("x1", x(chosen)).attr("x2", x(chosen)).attr("y1", inner.top)
    .attr("y2", inner.bottom);
  const lines = shown.map((p) => {
    const policy = verdict.policies[p], style = look(policy), own = trace().policies.indexOf(policy);
    const marked = own >= 0 && (own === state.policy || own === state.vs);
    return {label: policy, colour: style.colour, dash: style.dash, marker: style.marker, width: marked ? 3 : 1.4,
            opacity: marked ? 1 : 0.75,
            points: columns.map((/** @type {number} */ b) => [verdict.budgets[b].ratio, measure.values[p][b] ?? NaN])};
  });
  drawLines(svg, lines, x, y);
  if (measure.low) {
    const whiskers = shown.flatMap((p) => columns.filter((/** @type {number} */ b) => measure.low?.[p][b] != null).map(
      (/** @type {number} */ b) => ({x: verdict.budgets[b].ratio, low: measure.low?.[p][b], high: measure.high?.[p][b],
                                     colour: look(verdict.policies[p]).colour})));
    drawWhiskers(svg, whiskers, x, y);
  }
  at("curves-caption").textContent = "A line for each policy of the table; its key there switches it on and off.";
}
