/** The later tokens: two measures over the steps, the worst of them, and their text. */

const WORST = 8;        // steps that are marked
const LATER = 400;      // later tokens whose text is shown at a time

/** Steps of the trace between the ends of the chosen range: [first index, behind the last]. */
function stepRange() {
  const steps = trace().steps;
  if (state.from < 0) return [0, steps.length];
  return [Math.max(0, steps.indexOf(state.from)), steps.indexOf(state.to) + 1 || steps.length];
}

/**
 * The steps at which a policy does worst by the lower measure, worst first.
 * @param {number} policy @param {number} count
 */
async function worstSteps(policy, count) {
  const series = seriesOf(state.series2) || trace().series[0];
  if (!series) return [];
  const {values, bounds} = await seriesValues(series, policy, "mean", state.budget);
  const sign = series.better === "high" ? 1 : -1, [first, end] = stepRange();
  const order = d3.range(values.length).filter((/** @type {number} */ k) => Number.isFinite(values[k]) &&
    bounds[k] >= first && bounds[k] < end);
  order.sort((/** @type {number} */ a, /** @type {number} */ b) => sign * (values[a] - values[b]) || a - b);
  return order.slice(0, count).map((/** @type {number} */ k) => ({step: trace().steps[bounds[k]], value: values[k]}));
}

async function drawSteps() {
  const here = trace(), options = here.series.map((one) => ({value: one.id, text: optionText(one)}));
  fill("series1", options, state.series1);
  fill("series2", options, state.series2);
  const worst = await worstSteps(state.policy, WORST);
  await Promise.all([drawSeries("steps1", state.series1, worst), drawSeries("steps2", state.series2, worst)]);
  const range = at("range");
  range.replaceChildren();
  if (state.from >= 0) {
    const all = make("button", {type: "button"}, "All steps");
    all.addEventListener("click", () => choose({from: -1, to: -1}));
    range.append(`steps ${state.from} to ${state.to} `, all);
  }
  await drawWorst(worst);
  await drawLater();
}

/** @param {string} host @param {string} id @param {{step: number, value: number}[]} worst */
async function drawSeries(host, id, worst) {
  const series = seriesOf(id), here = trace();
  if (!series || here.steps.length === 0) return at(host).replaceChildren();
  /** @type {Line[]} */
  const lines = [];
  const several = series.layered && state.layer < 0;
  for (const [policy, colour, dash] of /** @type {[number, string, string][]} */ ([
    [state.vs, "var(--b)", "6 2"], [state.policy, "var(--a)", ""]])) {
    if (policy < 0) continue;
    for (const fold of /** @type {("mean"|"worst")[]} */ (several && policy === state.policy ? ["worst", "mean"] : ["mean"])) {
      const {values, bounds} = await seriesValues(series, policy, fold, state.budget);
      const name = here.policies[policy] + (several ? (fold === "mean" ? ", mean over layers" : ", worst layer") : "");
      lines.push({colour, dash: fold === "worst" ? "1 2" : dash, width: fold === "worst" ? 1 : 1.8, label: name,
                  opacity: fold === "worst" ? 0.55 : 1, points: pointsOf(values, bounds),
                  marker: fold === "mean" && values.length < 24 ? "o" : undefined});
    }
  }
  const steps = here.steps;
  const x = d3.scaleLinear().domain([steps[0], Math.max(steps[0] + 1, steps[steps.length - 1])]);
  const y = d3.scaleLinear().domain(extent(lines.flatMap((line) => line.points.map((point) => point[1])))).nice(4);
  const {svg, inner} = frame(at(host), {height: 190, x, y, title: `${measureText(series)}${scopeOf(series)}`, label:
    `${series.label} over the later tokens`, xFormat: d3.format("d")});
  drawLines(svg, lines, x, y);
  markSteps(svg, x, y, inner, worst);
  handleSteps(svg, x, inner, lines, at(host));
}

/**
 * A point per step, or per part of the steps.
 * @param {Float32Array} values @param {number[]} bounds @returns {[number, number][]}
 */
function pointsOf(values, bounds) {
  const steps = trace().steps;
  return Array.from(values, (value, k) => [steps[bounds[k]], value]);
}

/** @param {any} svg @param {any} x @param {any} y @param {any} inner @param {{step: number}[]} worst */
function markSteps(svg, x, y, inner, worst) {
  const mark = d3.symbol().type(d3.symbolTriangle).size(46)();
  svg.append("g").attr("class", "worst-marks").selectAll("path").data(worst).join("path").attr("d", mark)
    .attr("transform", (/** @type {any} */ one) => `translate(${x(one.step)},${inner.top - 5}) rotate(180)`)
    .style("fill", "rgb(var(--lost))");
  if (state.step >= 0) {
    svg.append("line").attr("class", "cursor").attr("x1", x(state.step)).attr("x2", x(state.step))
      .attr("y1", inner.top).attr("y2", inner.bottom);
  }
}

/**
 * The step nearest to a place.
 * @param {number} position
 */
function nearestStep(position) {
  const steps = trace().steps, k = d3.bisectLeft(steps, position);
  if (k === 0) return steps[0];
  if (k >= steps.length) return steps[steps.length - 1];
  return position - steps[k - 1] < steps[k] - position ? steps[k - 1] : steps[k];
}

/**
 * A click chooses a step, a drag a range; moving reads the lines.
 * @param {any} svg @param {any} x @param {any} inner
 * @param {Line[]} lines @param {HTMLElement} host
 */
function handleSteps(svg, x, inner, lines, host) {
  const brush = d3.brushX().extent([[inner.left, inner.top], [inner.right, inner.bottom]]).on("end", () => {
    const event = d3.event;
    if (!event.sourceEvent) return;
    if (!event.selection) {
      const [px] = d3.clientPoint(svg.node(), event.sourceEvent.changedTouches?.[0] ?? event.sourceEvent);
      choose({step: nearestStep(x.invert(px))});
    } else {
      const [from, to] = event.selection.map((/** @type {number} */ px) => nearestStep(x.invert(px)));
      choose({from, to});
    }
  });
  const layer = svg.append("g").attr("class", "brush").call(brush);
  if (state.from >= 0) layer.call(brush.move, [x(state.from), Math.max(x(state.from) + 2, x(state.to))]);
  const readout = host.querySelector(".readout") || host.appendChild(make("div", {class: "readout"}));
  const say = (/** @type {number} */ step) => { readout.textContent = readoutText(step, lines); };
  say(state.step);
  svg.on("mousemove", () => say(nearestStep(x.invert(d3.mouse(svg.node())[0]))));
  svg.on("mouseleave", () => say(state.step));
}

/** @param {number} step @param {Line[]} lines */
function readoutText(step, lines) {
  if (step < 0) return "";
  const read = lines.slice().reverse().map((line) => {
    const k = Math.max(0, d3.bisectRight(line.points.map((point) => point[0]), step) - 1);
    return `${line.label}: ${number(line.points[k]?.[1])}`;
  });
  return `step ${step} · ${read.join(" · ")}`;
}

/** @param {{step: number, value: number}[]} worst */
async function drawWorst(worst) {
  const words = await tokenTexts(), series = seriesOf(state.series2);
  const buttons = worst.map(({step, value}) => {
    const text = words ? ` ${JSON.stringify(oneLine(words[step]))}` : "";
    const button = make("button", {type: "button", "data-step": String(step), "aria-pressed": String(step === state.step)},
                        make("bdi", {}, `${step}${text} ${number(value)}`));
    button.addEventListener("click", () => choose({step}));
    return button;
  });
  at("worst").replaceChildren(`Worst by ${series?.label ?? "steps"}: `, ...buttons);
}

/** The text around the chosen step; depth of colour is the loss by the lower measure. */
async function drawLater() {
  const words = await tokenTexts(), host = at("later"), here = trace(), series = seriesOf(state.series2);
  host.hidden = !words || !series;
  if (!words || !series) return;
  const {values, bounds} = await seriesValues(series, state.policy, "mean", state.budget);
  const best = series.better === "high" ? 1 : 0;
  const loss = (/** @type {number} */ k) => Math.abs(values[Math.max(0, d3.bisectRight(bounds, k) - 1)] - best);
  const middle = here.steps.indexOf(state.step), first = Math.max(0, Math.min(middle - LATER / 2, here.steps.length - LATER));
  const shown = d3.range(first, Math.min(here.steps.length, first + LATER));
  const most = d3.max(shown, (/** @type {number} */ k) => loss(k)) || 1;
  const pieces = shown.map((/** @type {number} */ k) => {
    const step = here.steps[k], token = tokenElement(words[step], step);
    token.style.backgroundColor = `rgba(var(--lost), ${(0.75 * Math.min(1, (loss(k) || 0) / most)).toFixed(3)})`;
    if (step === state.step) token.classList.add("now");
    return token;
  });
  host.replaceChildren(first > 0 ? "… " : "", ...pieces, first + LATER < here.steps.length ? " …" : "");
  const now = host.querySelector(".now");
  if (now) host.scrollTop = now.offsetTop - host.offsetTop - host.clientHeight / 2;
}
