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
  const printing = matchMedia("print");

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

  function draw(id) {
    const place = document.getElementById(id);
    const { data, layout } = figures[id];
    const hover = dark.matches && !printing.matches
      ? { bgcolor: "#23272e", bordercolor: "#59636f", font: { color: "#e8eaed" } }
      : { bgcolor: "#ffffff", bordercolor: "#aab2bc", font: { color: "#1d2228" } };
    const own = colored(layout);
    own.hoverlabel = { ...own.hoverlabel, ...hover };
    own.modebar = { bgcolor: "rgba(0,0,0,0)", color: own.font.color, activecolor: own.font.color };
    if (place.clientWidth < 520 && data.length > 1) {
      // Legends wrap on a small screen: give them the room above the curves.
      own.margin = { ...own.margin, t: own.margin.t + 44, l: Math.min(own.margin.l, 40) };
      own.height = layout.height + 44;
    }
    return Plotly.react(place, colored(data), own, config);
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
  printing.addEventListener("change", redraw);
})();
