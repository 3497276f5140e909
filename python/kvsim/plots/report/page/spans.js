/** Keep rate of the labelled spans by layer and by budget, against the unbiased line. */

async function drawSpans() {
  const here = trace(), section = at("spans-section");
  section.hidden = !here.spanRates.keep_rate || !here.spans.length;
  if (section.hidden) return;
  const sides = /** @type {[number, string, string][]} */ ([[state.policy, "var(--a)", ""], [state.vs, "var(--b)", "6 2"]])
    .filter(([policy]) => policy >= 0);
  const found = await Promise.all(sides.map(async ([policy, colour, dash]) => ({
    policy, colour, dash, rate: await block(`${here.spanRates.keep_rate}-${policy}`),
    bias: await block(`${here.spanRates.bias_index}-${policy}`)})));
  const grid = at("spans");
  const wanted = here.spans.flatMap((_, s) => [`span-${s}-layer`, `span-${s}-budget`]);
  if (grid.dataset.known !== wanted.join()) {
    grid.replaceChildren(...wanted.map((id) => make("div", {id, class: "plot"})));
    grid.dataset.known = wanted.join();
  }
  here.spans.forEach((span, s) => {
    spanByLayer(at(`span-${s}-layer`), span, s, found);
    spanByBudget(at(`span-${s}-budget`), span, s, found);
  });
}

/** @typedef {{policy: number, colour: string, dash: string, rate: Float32Array, bias: Float32Array}} Rates */

/** @param {number} b @param {number} l @param {number} s */
function spanIndex(b, l, s) {
  return (b * trace().layers.length + l) * trace().spans.length + s;
}

/** @param {HTMLElement} host @param {Span} span @param {number} s @param {Rates[]} found */
function spanByLayer(host, span, s, found) {
  const layers = trace().layers;
  const x = d3.scaleLinear().domain([layers[0], Math.max(layers[0] + 1, layers[layers.length - 1])]);
  const y = d3.scaleLinear().domain([0, 1]);
  const {svg, inner} = frame(host, {height: 200, x, y, xFormat: d3.format("d"), label: `Keep rate of ${span.name} by layer`,
    title: `${span.name} by layer, at budget ${trace().budgets[state.budget]}`});
  const lines = spanLines(found, (one, l) => spanIndex(state.budget, l, s), layers);
  drawLines(svg, lines, x, y);
  if (state.layer >= 0) {
    const place = x(layers[state.layer]);
    svg.append("line").attr("class", "cursor").attr("x1", place).attr("x2", place).attr("y1", inner.top).attr("y2", inner.bottom);
  }
}

/** @param {Rates[]} found @param {(one: Rates, k: number) => number} index @param {number[]} xs @returns {Line[]} */
function spanLines(found, index, xs) {
  return found.flatMap((one) => [
    {label: `${trace().policies[one.policy]} unbiased`, colour: one.colour, dash: "1 3", width: 1.4,
     points: /** @type {[number, number][]} */ (xs.map((x, k) => [x, one.rate[index(one, k)] - one.bias[index(one, k)]]))},
    {label: trace().policies[one.policy], colour: one.colour, dash: one.dash, width: 2, marker: xs.length < 20 ? "o" : undefined,
     points: /** @type {[number, number][]} */ (xs.map((x, k) => [x, one.rate[index(one, k)]]))}]);
}

/** @param {HTMLElement} host @param {Span} span @param {number} s @param {Rates[]} found */
function spanByBudget(host, span, s, found) {
  const here = trace(), layers = state.layer < 0 ? d3.range(here.layers.length) : [state.layer];
  const order = d3.range(here.ratios.length).sort((/** @type {number} */ a, /** @type {number} */ b) => here.ratios[a] - here.ratios[b]);
  const over = (/** @type {Float32Array} */ values, /** @type {number} */ b) =>
    d3.mean(layers, (/** @type {number} */ l) => values[spanIndex(b, l, s)]) ?? NaN;
  const ratios = order.map((/** @type {number} */ b) => here.ratios[b]), single = ratios.length < 2;
  const x = d3.scaleLinear().domain(single ? [ratios[0] - 0.1, ratios[0] + 0.1] : d3.extent(ratios));
  const y = d3.scaleLinear().domain([0, 1]);
  const {svg} = frame(host, {height: 200, x, y, xTicks: ratios, xFormat: (value) => d3.format(".3~g")(value),
    label: `Keep rate of ${span.name} by budget`,
    title: `${span.name} by budget, ${state.layer < 0 ? "mean over layers" : `layer ${here.layers[state.layer]}`}`});
  const lines = found.flatMap((one) => {
    const points = (/** @type {(b: number) => number} */ value) =>
      /** @type {[number, number][]} */ (order.map((/** @type {number} */ b) => [here.ratios[b], value(b)]));
    return [{label: `${here.policies[one.policy]} unbiased`, colour: one.colour, dash: "1 3", width: 1.4,
             points: points((b) => over(one.rate, b) - over(one.bias, b))},
            {label: here.policies[one.policy], colour: one.colour, dash: one.dash, width: 2, marker: "o",
             points: points((b) => over(one.rate, b))}];
  });
  drawLines(svg, lines, x, y);
}
