/** The map of layers and heads: any measure at the chosen policy, budget and range of steps. */

const KEPT_SHARE = "kept share", LOST_SHARE = "lost at the step";

/**
 * What the map can show.
 * @returns {(Named & {kind: string, map?: LayerMap, series?: Series})[]}
 */
function mapMeasures() {
  const here = trace(), listed = [];
  const plain = (/** @type {string} */ id, /** @type {string} */ label, /** @type {"high"|"low"|"none"} */ better) =>
    ({id, label, unit: "1", better, kind: id});
  for (const map of here.maps) if (map.heads) listed.push({...map, kind: "map", map});
  if (here.heads_kept.kv_head) listed.push(plain(KEPT_SHARE, "share of the prompt that is kept", "none"));
  if (here.looked && here.kept && !here.kept.pooled)
    listed.push(plain(LOST_SHARE, "importance that the chosen step lost, among its listed entries", "low"));
  for (const series of here.series) if (series.layered) listed.push({...series, kind: "series", series});
  for (const map of here.maps) if (!map.heads) listed.push({...map, kind: "map", map});
  return listed;
}

/**
 * A row per layer; its first number is the layer's own, the others those of heads.
 * @param {any} measure
 * @param {number} policy
 * @returns {Promise<{rows: number[][], heads: number}>}
 */
async function mapValues(measure, policy) {
  const here = trace(), layers = here.layers.length;
  const [first, end] = stepRange();
  if (measure.kind === KEPT_SHARE) return keptMap(policy);
  if (measure.kind === LOST_SHARE) return lostMap(policy);
  if (measure.kind === "series") {
    const series = /** @type {Series} */ (measure.series), bounds = series.layerBounds || series.bounds;
    const all = await block(`${series.mean}-layer-${policy}`), count = bounds.length - 1;
    const rows = d3.range(layers).map((/** @type {number} */ l) =>
      [meanOver(all, (state.budget * layers + l) * count, bounds, first, end)]);
    return {rows, heads: 0};
  }
  const map = /** @type {LayerMap} */ (measure.map), all = await block(`${map.blocks}-${policy}`);
  if (!map.heads) {
    return {rows: d3.range(layers).map((/** @type {number} */ l) => [all[state.budget * layers + l]]), heads: 0};
  }
  const bounds = map.bounds || [0, 1], count = bounds.length - 1, series = seriesOf(map.id.replace(/_head$/, ""));
  const pooled = series ? await mapValues({kind: "series", series}, policy) : null;
  const rows = d3.range(layers).map((/** @type {number} */ l) => [
    pooled ? pooled.rows[l][0] : NaN,
    ...d3.range(map.heads).map((/** @type {number} */ h) =>
      meanOver(all, ((state.budget * layers + l) * map.heads + h) * count, bounds, first, end))]);
  return {rows, heads: map.heads};
}

/**
 * Mean over the steps first..end-1 of values that stand for parts of them.
 * @param {Float32Array} all @param {number} from
 * @param {number[]} bounds @param {number} first @param {number} end
 */
function meanOver(all, from, bounds, first, end) {
  let sum = 0, weight = 0;
  for (let k = 0; k + 1 < bounds.length; ++k) {
    const steps = Math.min(end, bounds[k + 1]) - Math.max(first, bounds[k]), value = all[from + k];
    if (steps > 0 && !Number.isNaN(value)) {
      sum += steps * value;
      weight += steps;
    }
  }
  return weight ? sum / weight : NaN;
}

/** @param {number} policy */
async function keptMap(policy) {
  const here = trace(), owners = here.kept?.owners[policy];
  const query = owners ? owners.query : false;
  const name = query ? here.heads_kept.head : here.heads_kept.kv_head, heads = query ? here.heads : here.kvHeads;
  const all = await block(`${name}-${policy}`), layers = here.layers.length;
  const rows = d3.range(layers).map((/** @type {number} */ l) => {
    const from = (state.budget * layers + l) * heads, own = all.subarray(from, from + heads);
    return [d3.mean(own), ...own];
  });
  return {rows, heads};
}

/** @param {number} policy */
async function lostMap(policy) {
  const here = trace(), found = await shareAt(state.step), sets = here.kept, heads = here.looked?.heads ?? 0;
  if (!found || !sets) return {rows: here.layers.map(() => [NaN, ...Array(heads).fill(NaN)]), heads};
  const bits = await block(`${sets.blocks}-${policy}-${state.budget}`);
  const rows = d3.range(here.layers.length).map((/** @type {number} */ l) => {
    const own = d3.range(heads).map((/** @type {number} */ h) => d3.sum(found.ranks(l), (/** @type {number} */ k) => {
      const entry = found.entry(l, k);
      return entry < 0 || isKept(bits, policy, l, entry, h, found.looked) ? 0 : found.share(l, h, k);
    }));
    return [d3.sum(own), ...own];
  });
  return {rows, heads};
}

async function drawMaps() {
  const known = mapMeasures(), measure = known.find((one) => one.id === state.map) || known[0];
  const section = at("layers-heading").parentElement;
  section.hidden = !measure;
  if (!measure) return;
  fill("map-measure", known.map((one) => ({value: one.id, text: one.kind === one.id ? measureText(one) : optionText(one)})), measure.id);
  const over = measure.kind === KEPT_SHARE ? "" : measure.kind === LOST_SHARE ? `step ${state.step}`
    : state.from >= 0 ? `mean over steps ${state.from} to ${state.to}` : "mean over all steps";
  at("map-range").textContent = over;
  const sides = /** @type {[string, number][]} */ ([["a", state.policy], ["b", state.vs]]).filter(([, p]) => p >= 0);
  const found = await Promise.all(sides.map(([, policy]) => mapValues(measure, policy)));
  const values = found.flatMap((one) => one.rows.flat()).filter(Number.isFinite);
  const domain = [Math.min(0, d3.min(values) ?? 0), d3.max(values) ?? 1];
  at("map-b-side").hidden = state.vs < 0;
  at("map-a").parentElement.parentElement.classList.toggle("single", state.vs < 0);
  sides.forEach(([side, policy], k) => {
    at(`map-${side}-title`).replaceChildren(make("span", {class: `badge ${side}`}, side.toUpperCase()),
                                            ` ${trace().policies[policy]} at ${trace().budgets[state.budget]}`);
    drawMap(at(`map-${side}`), found[k], domain, measure);
  });
  at("map-legend").replaceChildren(`${number(domain[0])}`, make("i", {class: "ramp"}), ` ${number(domain[1])}; hatched: undefined`);
}

/** @param {HTMLElement} host @param {{rows: number[][], heads: number}} found @param {number[]} domain @param {Named} measure */
function drawMap(host, found, domain, measure) {
  const width = Math.max(240, host.clientWidth || 500), rows = found.rows.length, columns = found.heads + 1;
  const size = Math.max(12, Math.min(26, 420 / rows)), left = 44, top = found.heads ? 36 : 20, gap = found.heads ? 10 : 0;
  const wide = Math.min(64, (width - left - gap - 6) / columns);
  const svg = d3.select(host).selectAll("svg").data([0]).join("svg").attr("viewBox", `0 0 ${width} ${top + rows * size + 6}`)
    .attr("height", top + rows * size + 6).attr("tabindex", 0).attr("role", "application")
    .attr("aria-label", `${measure.label} by layer and head; arrow keys move, Enter chooses`);
  svg.selectAll("*").remove();
  const pattern = svg.append("defs").append("pattern").attr("id", `${host.id}-hatch`).attr("width", 6).attr("height", 6)
    .attr("patternUnits", "userSpaceOnUse");
  pattern.append("path").attr("d", "M0,6 L6,0").style("stroke", "var(--soft)").attr("stroke-width", 1);
  const shades = d3.range(33).map((/** @type {number} */ k) => shade(k / 32));
  const scale = (/** @type {number} */ value) => shades[Math.round(32 * (value - domain[0]) / (domain[1] - domain[0] || 1))];
  const cells = found.rows.flatMap((row, l) => row.map((value, c) => ({l, h: c - 1, value})));
  const xOf = (/** @type {number} */ h) => left + (h < 0 ? 0 : gap + (h + 1) * wide);
  svg.selectAll("rect.cell").data(cells).join("rect").attr("class", "cell")
    .attr("data-layer", (/** @type {any} */ d) => trace().layers[d.l]).attr("data-head", (/** @type {any} */ d) => d.h)
    .attr("data-value", (/** @type {any} */ d) => d.value)
    .attr("x", (/** @type {any} */ d) => xOf(d.h) + 0.5).attr("y", (/** @type {any} */ d) => top + d.l * size + 0.5)
    .attr("width", Math.max(1, wide - 1)).attr("height", size - 1)
    .style("fill", (/** @type {any} */ d) => Number.isFinite(d.value) ? scale(d.value) : `url(#${host.id}-hatch)`)
    .on("click", (/** @type {any} */ d) => pickCell(d, found.heads))
    .on("mousemove", (/** @type {any} */ d) => showTip(cellText(d, found.heads, measure), d3.event.clientX, d3.event.clientY))
    .on("mouseleave", hideTip);
  if (wide >= 34 && size >= 16) {
    svg.append("g").selectAll("text").data(cells.filter((cell) => Number.isFinite(cell.value))).join("text")
      .attr("class", (/** @type {any} */ d) => inkOn(scale(d.value))).attr("text-anchor", "middle")
      .attr("x", (/** @type {any} */ d) => xOf(d.h) + wide / 2).attr("y", (/** @type {any} */ d) => top + (d.l + 0.5) * size + 4)
      .text((/** @type {any} */ d) => number(d.value));
  }
  mapLabels(svg, found, {left, top, size, wide, xOf});
  markPicked(svg, found, {top, size, wide, xOf});
  mapKeys(svg, found, {top, size, wide, xOf}, measure, host);
}

/**
 * Which of two inks is read on a colour.
 * @param {string} colour
 */
function inkOn(colour) {
  return d3.lab(colour).l > 55 ? "on-light" : "on-dark";
}

/** @typedef {{left?: number, top: number, size: number, wide: number, xOf: (h: number) => number}} Grid */

/** @param {any} svg @param {{rows: number[][], heads: number}} found @param {Grid} grid */
function mapLabels(svg, found, grid) {
  const every = grid.size < 14 && found.rows.length > 16 ? 2 : 1;
  svg.append("g").selectAll("text").data(trace().layers).join("text").attr("x", (grid.left ?? 44) - 6).attr("text-anchor", "end")
    .attr("y", (/** @type {number} */ _, /** @type {number} */ l) => grid.top + (l + 0.5) * grid.size + 4)
    .text((/** @type {number} */ layer, /** @type {number} */ l) => l % every ? "" : layer);
  const columns = d3.range(-1, found.heads), skip = Math.max(1, Math.ceil(22 / grid.wide));
  svg.append("g").selectAll("text.column").data(columns).join("text").attr("text-anchor", "middle")
    .attr("x", (/** @type {number} */ h) => grid.xOf(h) + grid.wide / 2).attr("y", grid.top - 6)
    .text((/** @type {number} */ h) => h < 0 ? "all" : h % skip ? "" : h);
  svg.append("text").attr("x", 0).attr("y", grid.top - 6).text("layer");
  if (found.heads)
    svg.append("text").attr("class", "heads").attr("x", grid.xOf(0)).attr("y", 12).text(headKind(found.heads));
}

/**
 * Heads of the map per query head: KV heads stand for their group.
 * @param {number} heads of the map
 */
function groupOf(heads) {
  return heads > 0 ? Math.max(1, Math.round(trace().heads / heads)) : 1;
}

/**
 * What a column of the map is.
 * @param {number} heads of the map
 */
function headKind(heads) {
  if (trace().kvHeads === trace().heads) return "head (as many KV heads as query heads)";
  return groupOf(heads) > 1 ? `KV head (each serves ${groupOf(heads)} query heads)` : "query head";
}

/** @param {any} svg @param {{rows: number[][], heads: number}} found @param {Grid} grid */
function markPicked(svg, found, grid) {
  if (state.layer < 0 && state.head < 0) return;
  const column = state.head < 0 || !found.heads ? -1 : Math.floor(state.head / groupOf(found.heads));
  const rows = state.layer < 0 ? d3.range(found.rows.length) : [state.layer];
  svg.append("rect").attr("class", "picked").attr("x", grid.xOf(column)).attr("y", grid.top + rows[0] * grid.size)
    .attr("width", grid.wide).attr("height", rows.length * grid.size);
}

/** @param {{l: number, h: number}} cell @param {number} heads of the map */
function pickCell(cell, heads) {
  const head = cell.h < 0 ? -1 : cell.h * groupOf(heads);
  const same = state.layer === cell.l && state.head === head;
  choose(same ? {layer: -1, head: -1} : {layer: cell.l, head});
}

/** @param {{l: number, h: number, value: number}} cell @param {number} heads @param {Named} measure */
function cellText(cell, heads, measure) {
  const kind = headKind(heads).replace(/ \(.*/, "");
  return `layer ${trace().layers[cell.l]}${cell.h < 0 ? "" : `, ${kind} ${cell.h}`}\n${measure.label}: ${number(cell.value)}`;
}

/**
 * Arrow keys move a frame over the cells; Enter chooses.
 * @param {any} svg @param {{rows: number[][], heads: number}} found
 * @param {Grid} grid @param {Named} measure @param {HTMLElement} host
 */
function mapKeys(svg, found, grid, measure, host) {
  const cursor = {l: Number(host.dataset.l || 0), h: Math.min(found.heads - 1, Number(host.dataset.h || -1))};
  svg.on("keydown", () => {
    const event = d3.event;
    const move = /** @type {Record<string, [number, number]>} */ (
      {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Enter: [0, 0]})[event.key];
    if (!move) return;
    event.preventDefault();
    event.stopPropagation();
    cursor.l = Math.max(0, Math.min(found.rows.length - 1, cursor.l + move[0]));
    cursor.h = Math.max(-1, Math.min(found.heads - 1, cursor.h + move[1]));
    Object.assign(host.dataset, {l: String(cursor.l), h: String(cursor.h)});
    if (event.key === "Enter") return pickCell(cursor, found.heads);
    svg.selectAll(".cursor").remove();
    svg.append("rect").attr("class", "cursor").attr("fill", "none").attr("x", grid.xOf(cursor.h)).attr("width", grid.wide)
      .attr("y", grid.top + cursor.l * grid.size).attr("height", grid.size);
    const box = svg.node().getBoundingClientRect();
    showTip(cellText({...cursor, value: found.rows[cursor.l][cursor.h + 1]}, found.heads, measure),
            box.left + grid.xOf(cursor.h), box.top + grid.top + cursor.l * grid.size);
  });
}
