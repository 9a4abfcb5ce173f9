// What the page does on top of being read: copy buttons, and charts over their tables. Runs under a policy that
// allows this text by its hash; takes its data from the JSON elements, never from markup.
"use strict";
(() => {
  const said = document.getElementById("copied");

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea"); // older browsers, and files opened without a secure origin
      area.value = text;
      area.className = "visually-hidden";
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      if (!done) throw new Error("the browser does not allow it");
    }
  }

  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.setAttribute("aria-label", `Copy ${button.dataset.copy}`);
    button.addEventListener("click", async () => {
      try {
        await copy(button.dataset.copy);
        button.textContent = "Copied";
        said.textContent = `Copied ${button.dataset.copy}`;
      } catch {
        button.textContent = "Select and copy";
        said.textContent = "This browser does not allow copying";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  const element = document.getElementById("figures");
  if (!element || typeof Plotly === "undefined") return;
  const figures = JSON.parse(element.textContent);
  const twins = JSON.parse(document.getElementById("twins").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  // Known before the first page is laid out, so that no page is counted for a chart's height on the screen.
  const printing = { matches: matchMedia("print").matches };
  const coarse = matchMedia("(pointer: coarse)");

  // The figure in the colours of the reader's screen: each light colour has its dark twin.
  function colored(value) {
    if (typeof value === "string") return (dark.matches && !printing.matches && twins[value.toLowerCase()]) || value;
    if (Array.isArray(value)) return typeof value[0] === "object" ? value.map(colored) : value;
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, colored(part)]));
  }

  const config = {
    responsive: true,
    displaylogo: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    doubleClick: "reset",
  };

  if (coarse.matches) {
    config.displayModeBar = false; // its buttons would lie over the legend
    for (const line of document.querySelectorAll(".readout")) line.textContent = "Tap the chart for the values at a time.";
  }

  function draw(id) {
    const place = document.getElementById(id);
    const { data, layout } = figures[id];
    const hover = dark.matches && !printing.matches
      ? { bgcolor: "#23272e", bordercolor: "#59636f", font: { color: "#e8eaed" } }
      : { bgcolor: "#ffffff", bordercolor: "#aab2bc", font: { color: "#1d2228" } };
    const own = colored(layout);
    own.hoverlabel = { ...own.hoverlabel, ...hover };
    own.modebar = { bgcolor: "rgba(0,0,0,0)", color: own.font.color, activecolor: own.font.color };
    if (coarse.matches) own.dragmode = false; // a swipe over a chart scrolls the page
    if (printing.matches) own.height = Math.min(layout.height, id === "gantt" ? 560 : 430);
    if (printing.matches && id === "gantt") own.yaxis.tickfont.size = 8;
    if (place.clientWidth < 520 && own.xaxis) own.xaxis = { ...own.xaxis, nticks: 4, tickangle: 0 };
    if (place.clientWidth < 520 && data.length > 1) {
      // Legends wrap on a small screen: give them the room above the curves.
      own.margin = { ...own.margin, t: own.margin.t + 44, l: Math.min(own.margin.l, 40) };
      own.height = layout.height + 44;
      if (own.yaxis && own.yaxis.ticktext && id === "gantt") {
        own.yaxis.showticklabels = false;
        own.margin.l = 8;
      }
    }
    return Plotly.react(place, colored(data), own, config).then(() => listen(id, place));
  }

  // What the curves say at a time, in a line below the chart, so that nothing covers them.
  const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZone: "UTC" });
  const stamp = (text) => Date.parse(`${String(text).replace(" ", "T")}Z`);
  const times = new Map();
  function timesOf(trace) {
    if (!times.has(trace.meta.key)) times.set(trace.meta.key, trace.x.map(stamp));
    return times.get(trace.meta.key);
  }
  function nearest(sorted, at) {
    let low = 0, high = sorted.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (sorted[middle] <= at) low = middle; else high = middle;
    }
    return Math.abs(sorted[high] - at) < Math.abs(sorted[low] - at) ? high : low;
  }
  function readout(id, at) {
    const parts = [];
    for (const trace of figures[id].data) {
      if (!trace.meta || !trace.x.length) continue;
      const y = trace.y[nearest(timesOf(trace), at)];
      if (y === null || y === undefined) continue;
      const shown = y.toLocaleString("en-US", { maximumFractionDigits: trace.meta.digits });
      if (trace.meta.replayed) parts.push(`${parts.pop() || trace.meta.name} (replay ${shown}${trace.meta.unit})`);
      else parts.push(`${trace.meta.name} ${shown}${trace.meta.unit}`);
    }
    return `${clock.format(at)} · ${parts.join(" · ")}`;
  }

  // Charts over time are zoomed together.
  let linking = false;
  const over = (id) => figures[id].layout.xaxis && figures[id].layout.xaxis.type === "date";
  function link(id, change) {
    const whole = change["xaxis.autorange"] || change.autosize;
    const range = change["xaxis.range"] || (change["xaxis.range[0]"] && [change["xaxis.range[0]"], change["xaxis.range[1]"]]);
    if (linking || change.autosize || (!whole && !range)) return;
    linking = true;
    const others = Object.keys(figures).filter((other) => other !== id && over(other) && document.getElementById(other).data);
    Promise.all(others.map((other) => {
      const own = figures[other].layout.xaxis.range;
      const update = range ? { "xaxis.range": range, "xaxis.autorange": false }
        : own ? { "xaxis.range": own } : { "xaxis.autorange": true };
      return Plotly.relayout(other, update);
    })).finally(() => { linking = false; });
  }

  const heard = new Set();
  function listen(id, place) {
    if (heard.has(id) || !over(id)) return;
    heard.add(id);
    place.on("plotly_relayout", (change) => link(id, change));
    const line = document.getElementById(`${id}-readout`);
    if (!line) return;
    place.on("plotly_hover", (event) => {
      const point = event.points && event.points[0];
      if (point) line.textContent = readout(id, typeof event.xvals?.[0] === "number" ? event.xvals[0] : stamp(point.x));
    });
  }

  // One chart a turn, so that the page can be read and scrolled meanwhile.
  const waiting = Object.keys(figures);
  function next() {
    const id = waiting.shift();
    if (id === undefined) {
      document.documentElement.dataset.charts = "ready";
      return;
    }
    draw(id);
    setTimeout(next);
  }
  next();

  const redraw = () => { if (!waiting.length) Object.keys(figures).forEach(draw); };
  dark.addEventListener("change", redraw);
  const onPaper = (yes) => { if (printing.matches !== yes) { printing.matches = yes; redraw(); } };
  addEventListener("beforeprint", () => onPaper(true));
  addEventListener("afterprint", () => onPaper(false));
  matchMedia("print").addEventListener("change", (change) => onPaper(change.matches));
})();
