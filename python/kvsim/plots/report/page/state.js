/** What is chosen, and how it stands in the address: `#policy=snapkv&budget=0.3&layer=15`. */

/** @type {State} */
const state = {trace: 0, policy: 0, vs: -1, budget: 0, layer: -1, head: -1, step: -1, from: -1, to: -1, measure: "",
               series1: "", series2: "", map: "", mode: "kept", at: 0, find: "", sort: ""};

/** Names that stand for "none" in the address. */
const NONE = "none";

/** What a page shows when the address says nothing. */
function setDefaults() {
  const here = trace(), middle = Math.floor((here.budgets.length - 1) / 2);
  Object.assign(state, {layer: -1, head: -1, from: -1, to: -1, at: 0, find: "", sort: ""});
  state.budget = middle;
  state.measure = content.verdict.measures[0]?.id ?? "";
  const ranked = rankedPolicies(here, middle);
  state.policy = ranked[Math.floor((ranked.length - 1) / 2)] ?? 0;
  state.vs = ranked.length > 1 ? ranked[0] : -1;
  const has = (/** @type {string} */ id) => here.series.some((one) => one.id === id);
  state.series1 = has("retained_importance") ? "retained_importance" : here.series[0]?.id ?? "";
  state.series2 = ["kl_divergence", "stream_error", "output_error"].find(has) ?? here.series[1]?.id ?? "";
  state.map = mapMeasures()[0]?.id ?? "";
  state.mode = here.kept || !here.looked ? "kept" : "step";
  state.step = here.steps[0] ?? -1;
}

/**
 * Policies of a trace, the best by the first measure first; last those that are not ranked for what they hold.
 * @param {Trace} here @param {number} budget
 */
function rankedPolicies(here, budget) {
  const measure = content.verdict.measures[0];
  if (!measure) return d3.range(here.policies.length);
  const column = content.verdict.budgets.findIndex((one) => one.label === here.budgets[budget]);
  const sign = measure.better === "high" ? -1 : 1;
  const value = (/** @type {number} */ p) => {
    const found = measure.values[content.verdict.policies.indexOf(here.policies[p])]?.[column];
    return found === null || found === undefined ? Infinity : sign * found;
  };
  const apart = (/** @type {number} */ p) => content.verdict.apart[content.verdict.policies.indexOf(here.policies[p])]?.[column];
  return d3.range(here.policies.length).sort((/** @type {number} */ a, /** @type {number} */ b) =>
    Number(apart(a)) - Number(apart(b)) || value(a) - value(b));
}

/** The state as it stands behind the # of the address. */
function addressOf() {
  const here = trace(), parts = new URLSearchParams();
  if (content.traces.length > 1) parts.set("trace", here.name);
  parts.set("policy", here.policies[state.policy]);
  parts.set("vs", state.vs < 0 ? NONE : here.policies[state.vs]);
  parts.set("budget", here.budgets[state.budget]);
  if (state.layer >= 0) parts.set("layer", String(here.layers[state.layer]));
  if (state.head >= 0) parts.set("head", String(state.head));
  parts.set("step", String(state.step));
  if (state.from >= 0) parts.set("steps", `${state.from}-${state.to}`);
  for (const key of /** @type {const} */ (["measure", "series1", "series2", "map", "mode", "find", "sort"]))
    if (state[key]) parts.set(key, state[key]);
  if (state.at > 0) parts.set("at", String(state.at));
  return parts.toString();
}

/**
 * Takes over whatever of an address this page has; the rest stays as it is.
 * @param {string} text
 */
function readAddress(text) {
  const parts = new URLSearchParams(text);
  const named = content.traces.findIndex((one) => one.name === parts.get("trace"));
  state.trace = Math.max(0, named);
  setDefaults();
  const here = trace();
  const pick = (/** @type {string} */ key, /** @type {any[]} */ known) =>
    known.findIndex((one) => String(one) === parts.get(key));
  const policy = pick("policy", here.policies), budget = pick("budget", here.budgets);
  if (policy >= 0) state.policy = policy;
  if (budget >= 0) state.budget = budget;
  if (parts.has("vs")) state.vs = pick("vs", here.policies);
  state.layer = pick("layer", here.layers);
  state.head = pick("head", d3.range(here.heads));
  const [from, to] = (parts.get("steps") || "").split("-").map(Number);
  if (here.steps.includes(from) && here.steps.includes(to) && from <= to) Object.assign(state, {from, to});
  const ids = {measure: content.verdict.measures, series1: here.series, series2: here.series, map: mapMeasures()};
  for (const [key, known] of Object.entries(ids)) {
    const id = parts.get(key);
    if (id && known.some((one) => one.id === id)) Object.assign(state, {[key]: id});
  }
  if (parts.get("mode") === "kept" || parts.get("mode") === "step")
    state.mode = /** @type {"kept"|"step"} */ (parts.get("mode"));
  state.find = parts.get("find") || "";
  state.sort = parts.get("sort") || "";
  const at = Number(parts.get("at"));
  if (at > 0 && at < here.prompt) state.at = Math.floor(at);
  const step = Number(parts.get("step"));
  state.step = here.steps.includes(step) ? step : -1;   // -1: the worst, once it is known
}

/**
 * Changes the state, the address and everything drawn.
 * @param {Partial<State>} changes
 */
function choose(changes) {
  Object.assign(state, changes);
  if (changes.trace !== undefined) {
    const wanted = {measure: state.measure, mode: state.mode};
    setDefaults();
    Object.assign(state, wanted, {step: -1});
  }
  try {
    history.replaceState(null, "", `#${addressOf()}`);
  } catch {   // some browsers allow a hundred of these in half a minute; the next one tells it all
  }
  redraw();
}
