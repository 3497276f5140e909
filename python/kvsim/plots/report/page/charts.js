/** Charts, drawn with D3 into an element's width. */

const MARGIN = {left: 54, right: 10, top: 22, bottom: 30};

/**
 * An empty chart with axes. `x` and `y` are scales without a range.
 * @param {HTMLElement} host @param {{height: number, x: any, y: any, title: string, xTicks?: any, label: string,
 *   xFormat?: (value: number) => string}} given
 */
function frame(host, given) {
  const width = Math.max(240, host.clientWidth || 600);
  const inner = {left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: given.height - MARGIN.bottom};
  given.x.range([inner.left, inner.right]);
  given.y.range([inner.bottom, inner.top]);
  d3.select(host).selectAll("svg").remove();
  const svg = d3.select(host).insert("svg", ":first-child").attr("viewBox", `0 0 ${width} ${given.height}`)
    .attr("height", given.height).attr("role", "img").attr("aria-label", given.label);
  svg.append("g").attr("class", "gridline").attr("transform", `translate(${inner.left},0)`)
    .call(d3.axisLeft(given.y).ticks(4).tickSize(inner.left - inner.right).tickFormat("")).select(".domain").remove();
  const bottom = d3.axisBottom(given.x).tickSizeOuter(0);
  if (given.xTicks) bottom.tickValues(given.xTicks);
  else bottom.tickValues(given.x.ticks(Math.max(3, Math.floor(width / 90))).filter(Number.isInteger));
  if (given.xFormat) bottom.tickFormat(given.xFormat);
  svg.append("g").attr("transform", `translate(0,${inner.bottom})`).call(bottom);
  svg.append("g").attr("transform", `translate(${inner.left},0)`)
    .call(d3.axisLeft(given.y).ticks(4).tickFormat(d3.format(".3~g"))).select(".domain").remove();
  svg.append("text").attr("class", "title").attr("x", 4).attr("y", 12).text(given.title);
  return {svg, inner, width};
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

const SYMBOLS = [d3.symbolCircle, d3.symbolSquare, d3.symbolTriangle, d3.symbolDiamond, d3.symbolCross, d3.symbolStar,
                 d3.symbolWye];

/** @param {any} svg @param {Line[]} lines @param {any} x @param {any} y */
function drawLines(svg, lines, x, y) {
  const path = d3.line().x((/** @type {[number, number]} */ point) => x(point[0])).y((/** @type {[number, number]} */ point) => y(point[1]));
  for (const line of lines) {
    const known = line.points.filter((point) => Number.isFinite(point[1]));
    svg.append("path").datum(known).attr("class", "line").attr("data-label", line.label).attr("fill", "none")
      .style("stroke", line.colour).attr("stroke-width", line.width ?? 1.6).attr("stroke-dasharray", line.dash || null)
      .attr("opacity", line.opacity ?? 1).attr("d", path(thinned(known, x)));
    if (line.symbol === undefined) continue;
    svg.append("g").selectAll("path").data(known).join("path")
      .attr("d", d3.symbol().type(SYMBOLS[line.symbol]).size(34)).style("fill", line.colour)
      .attr("opacity", line.opacity ?? 1)
      .attr("transform", (/** @type {[number, number]} */ point) => `translate(${x(point[0])},${y(point[1])})`);
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
  const style = look(policy);
  const svg = d3.create("svg").attr("width", 30).attr("height", 12).attr("class", "key").attr("aria-hidden", "true");
  svg.append("line").attr("x1", 0).attr("x2", 30).attr("y1", 6).attr("y2", 6).style("stroke", style.colour)
    .attr("stroke-width", 1.8).attr("stroke-dasharray", style.dash || null);
  svg.append("path").attr("d", d3.symbol().type(SYMBOLS[style.symbol]).size(30)).attr("transform", "translate(15,6)")
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
