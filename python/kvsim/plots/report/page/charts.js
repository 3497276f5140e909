/** Charts, drawn with D3 into an element's width. */

const MARGIN = {left: 54, right: 10, top: 32, bottom: 28};
const LINE = 14;   // pixels of a line of text
const WIDE = 20;   // times the least value: no linear axis shows both

/**
 * An empty chart with axes. `x` and `y` are scales without a range.
 * @param {HTMLElement} host @param {{height: number, x: any, y: any, title: string, xTicks?: number[], label: string,
 *   xFormat?: (value: number) => string, xLabel?: string}} given
 */
function frame(host, given) {
  const width = Math.max(240, host.clientWidth || 600);
  d3.select(host).selectAll("svg").remove();
  const svg = d3.select(host).insert("svg", ":first-child").attr("viewBox", `0 0 ${width} ${given.height}`)
    .attr("height", given.height).attr("role", "img").attr("aria-label", given.label);
  const lines = drawTitle(svg, given.title, width - 8);
  const inner = {left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top + (lines - 1) * LINE,
                 bottom: given.height - MARGIN.bottom - (given.xLabel ? LINE + 4 : 0)};
  given.x.range([inner.left, inner.right]);
  given.y.range([inner.bottom, inner.top]);
  svg.append("g").attr("class", "gridline").attr("transform", `translate(${inner.left},0)`)
    .call(d3.axisLeft(given.y).tickValues(ticksOf(given.y)).tickSize(inner.left - inner.right).tickFormat("")).select(".domain").remove();
  const bottom = d3.axisBottom(given.x).tickSizeOuter(0);
  if (given.xTicks) bottom.tickValues(apart(given.xTicks, given.x));
  else bottom.tickValues(given.x.ticks(Math.max(3, Math.floor(width / 90))).filter(Number.isInteger));
  if (given.xFormat) bottom.tickFormat(given.xFormat);
  svg.append("g").attr("transform", `translate(0,${inner.bottom})`).call(bottom);
  svg.append("g").attr("transform", `translate(${inner.left},0)`)
    .call(d3.axisLeft(given.y).tickValues(ticksOf(given.y)).tickFormat(d3.format(".3~g"))).select(".domain").remove();
  if (given.xLabel) {
    svg.append("text").attr("class", "axis").attr("x", (inner.left + inner.right) / 2).attr("y", given.height - 5)
      .attr("text-anchor", "middle").text(given.xLabel);
  }
  return {svg, inner, width};
}

/**
 * Writes a chart's title over as many lines as it needs, broken between words; returns their number.
 * @param {any} svg @param {string} title @param {number} room
 */
function drawTitle(svg, title, room) {
  const text = svg.append("text").attr("class", "title");
  let lines = 0, line = null, said = "";
  for (const word of title.split(" ")) {
    if (line) line.text(`${said} ${word}`);
    if (!line || line.node().getComputedTextLength() > room) {
      if (line) line.text(said);
      said = word;
      line = text.append("tspan").attr("x", 4).attr("y", 12 + lines++ * LINE).text(word);
    } else {
      said += ` ${word}`;
    }
  }
  return lines;
}

/**
 * Those of some places on an axis whose numbers have room beside each other.
 * @param {number[]} places ascending @param {any} x
 */
function apart(places, x) {
  /** @type {number[]} */
  const kept = [];
  for (const place of places)
    if (!kept.length || x(place) - x(kept[kept.length - 1]) >= 26) kept.push(place);
  return kept;
}

/**
 * Least and largest of lines' values, widened so that nothing lies on the edge.
 * @param {number[]} values
 */
function extent(values) {
  const known = values.filter(Number.isFinite);
  let low = Math.min(0, d3.min(known) ?? 0), high = d3.max(known) ?? 1;
  if (high > 0.5 && high <= 1 && low >= 0) high = 1;
  if (high <= low) high = low + 1;
  return [low, high + (high === 1 ? 0 : 0.04 * (high - low))];
}

/**
 * A scale for values of policies: logarithmic where they differ by more than a factor of WIDE.
 * @param {number[]} values
 */
function valueScale(values) {
  const known = values.filter(Number.isFinite), low = d3.min(known) ?? 0, high = d3.max(known) ?? 1;
  if (low > 0 && high > WIDE * low) return d3.scaleLog().domain([low / 1.1, high * 1.1]);
  return d3.scaleLinear().domain(extent(known)).nice(4);
}

/** @param {any} y @returns {number[]} */
function ticksOf(y) {
  if (!y.base) return y.ticks(4);
  const [low, high] = y.domain(), few = high < 1000 * low ? [1, 2, 5] : [1];
  return d3.range(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)) + 1)
    .flatMap((/** @type {number} */ power) => few.map((digit) => digit * 10 ** power))
    .filter((/** @type {number} */ value) => value >= low && value <= high);
}

/**
 * At most two points per pixel: the least and the largest of those that share one.
 * @param {[number, number][]} points @param {any} x @returns {[number, number][]}
 */
function thinned(points, x) {
  const room = x.range()[1] - x.range()[0];
  if (points.length < 3 * room) return points;
  /** @type {[number, number][]} */
  const kept = [];
  for (let first = 0; first < points.length;) {
    const pixel = Math.floor(x(points[first][0]));
    let low = first, high = first, next = first;
    while (next < points.length && Math.floor(x(points[next][0])) === pixel) {
      if (points[next][1] < points[low][1]) low = next;
      if (points[next][1] > points[high][1]) high = next;
      ++next;
    }
    kept.push(points[Math.min(low, high)]);
    if (low !== high) kept.push(points[Math.max(low, high)]);
    first = next;
  }
  return kept;
}

/**
 * Shapes and their turn in degrees, by the letters that stand for them in plots/looks.py.
 * @type {Record<string, [any, number]>}
 */
const MARKERS = {o: [d3.symbolCircle, 0], s: [d3.symbolSquare, 0], "^": [d3.symbolTriangle, 0], D: [d3.symbolDiamond, 0],
                 v: [d3.symbolTriangle, 180], P: [d3.symbolCross, 0], X: [d3.symbolCross, 45],
                 "<": [d3.symbolTriangle, -90], "*": [d3.symbolStar, 0], ">": [d3.symbolTriangle, 90]};

/** @param {any} svg @param {Line[]} lines @param {any} x @param {any} y */
function drawLines(svg, lines, x, y) {
  const path = d3.line().x((/** @type {[number, number]} */ point) => x(point[0])).y((/** @type {[number, number]} */ point) => y(point[1]));
  for (const line of lines) {
    const known = line.points.filter((point) => Number.isFinite(point[1]));
    svg.append("path").datum(known).attr("class", "line").attr("data-label", line.label).attr("fill", "none")
      .style("stroke", line.colour).attr("stroke-width", line.width ?? 1.6).attr("stroke-dasharray", line.dash || null)
      .attr("opacity", line.opacity ?? 1).attr("d", path(thinned(known, x)));
    if (line.marker === undefined) continue;
    const [shape, turn] = MARKERS[line.marker];
    svg.append("g").selectAll("path").data(known).join("path")
      .attr("d", d3.symbol().type(shape).size(34)).style("fill", line.colour)
      .attr("opacity", line.opacity ?? 1)
      .attr("transform", (/** @type {[number, number]} */ point) => `translate(${x(point[0])},${y(point[1])}) rotate(${turn})`);
  }
}

/** @param {any} svg @param {Whisker[]} whiskers @param {any} x @param {any} y */
function drawWhiskers(svg, whiskers, x, y) {
  for (const one of whiskers) {
    svg.append("line").attr("class", "whisker").attr("x1", x(one.x)).attr("x2", x(one.x)).attr("y1", y(one.low))
      .attr("y2", y(one.high)).style("stroke", one.colour).attr("stroke-width", 1.3).attr("opacity", 0.6);
  }
}

/**
 * A small drawing of a policy's line.
 * @param {string} policy
 */
function keyOf(policy) {
  const style = look(policy), [shape, turn] = MARKERS[style.marker];
  const svg = d3.create("svg").attr("width", 30).attr("height", 12).attr("class", "key").attr("aria-hidden", "true");
  svg.append("line").attr("x1", 0).attr("x2", 30).attr("y1", 6).attr("y2", 6).style("stroke", style.colour)
    .attr("stroke-width", 1.8).attr("stroke-dasharray", style.dash || null);
  svg.append("path").attr("d", d3.symbol().type(shape).size(30)).attr("transform", `translate(15,6) rotate(${turn})`)
    .style("fill", style.colour);
  return svg.node();
}

/**
 * The colour of a number in [0, 1], between --low and --high.
 * @param {number} share
 */
function shade(share) {
  const style = getComputedStyle(document.documentElement);
  return d3.interpolateLab(style.getPropertyValue("--low").trim(), style.getPropertyValue("--high").trim())(
    Math.max(0, Math.min(1, share)));
}
