// The page of a movie: the model with its slider, curves next to it, and the Ramachandran map.

const COLOURS = ["#0072B2", "#1f2933", "#D55E00", "#009E73", "#CC79A7", "#E69F00"];
// Curves above each other, with a line at the current frame.
class Curves {
  constructor(parent, pick) {
    const number = data.panels.length;
    this.node = element("div", element("section", parent), { className: "panels" });
    this.node.style.height = `${170 * number + 60}px`;
    const gap = 0.3 / number / 3;
    const traces = [];
    const layout = {
      font: FONT, margin: { l: 70, r: 16, t: 26, b: 46 }, showlegend: false, hovermode: "x unified", hoverlabel: { font: { size: 13 } },
      xaxis: axis(data.axis, { anchor: `y${number === 1 ? "" : number}`, tickformat: "~r" }), annotations: [], shapes: [],
    };
    this.levels = [];
    data.panels.forEach((panel, place) => {
      const name = `y${place ? place + 1 : ""}`;
      const top = 1 - place / number;
      layout[`yaxis${place ? place + 1 : ""}`] = axis("", {
        domain: [top - 1 / number + (place === number - 1 ? 0 : gap), top - gap], type: panel.logarithmic ? "log" : "linear",
        exponentformat: "power", ...(panel.logarithmic ? { dtick: 1 } : { nticks: 5 }),
      });
      const colours = panel.lines.length > 1 ? COLOURS : [COLOURS[(place + (place > 0 ? 1 : 0)) % COLOURS.length]];
      const names = panel.lines.map((line, k) => `<span style="color:${colours[k]}">${line.name}</span>`);
      layout.annotations.push({
        text: `<b>${panel.title}</b>${names.length > 1 ? `   ${names.join("  ")}` : ""}`, showarrow: false, xref: "paper",
        yref: "paper", x: 0, y: top - gap, xanchor: "left", yanchor: "bottom", font: { size: 13 },
      });
      panel.lines.forEach((line, k) => traces.push({
        type: "scatter", x: line.x, y: line.y, yaxis: name, name: line.name, line: { color: colours[k], width: 1.4 },
        mode: line.x.length < 60 ? "lines+markers" : "lines", marker: { size: 5 }, hovertemplate: "%{y:.6~g}",
      }));
      if (panel.level !== null) {
        this.levels.push({
          type: "line", xref: "paper", x0: 0, x1: 1, yref: name, y0: panel.level, y1: panel.level,
          line: { color: "#1f2933", width: 1, dash: "dash" },
        });
      }
    });
    this.ready = Plotly.newPlot(this.node, traces, layout, { displayModeBar: false, responsive: true }).then(() => {
      this.node.on("plotly_click", (event) => pick(nearest(event.points[0].x)));
    });
  }

  show(frame) {
    const here = {
      type: "line", xref: "x", x0: data.x[frame], x1: data.x[frame], yref: "paper", y0: 0, y1: 1,
      line: { color: "#d64545", width: 1.5 },
    };
    return Plotly.relayout(this.node, { shapes: [...this.levels, here] });
  }
}

// Averages over all frames, a plot for each.
function averages(parent) {
  return data.observables.map((one) => {
    const section = element("section", parent);
    element("h2", section, { textContent: one.title });
    const node = element("div", section);
    node.style.height = "260px";
    const traces = one.lines.map((line, k) => ({
      type: "scatter", mode: "lines", x: line.x, y: line.y, name: line.name, line: { color: COLOURS[k % COLOURS.length], width: 1.5 },
    }));
    const layout = {
      font: FONT, margin: { l: 60, r: 10, t: 8, b: 46 }, showlegend: one.lines.length > 1, legend: { x: 1, xanchor: "right", y: 1 },
      xaxis: axis(one.axis), yaxis: axis(""), hovermode: "x unified",
    };
    return Plotly.newPlot(node, traces, layout, { displayModeBar: false, responsive: true });
  });
}

// The frame whose place on the common axis is nearest to x.
function nearest(x) {
  let best = 0;
  data.x.forEach((value, frame) => {
    if (Math.abs(value - x) < Math.abs(data.x[best] - x)) best = frame;
  });
  return best;
}

const MOST_DOTS = 12000;
const REGIONS = [["β", -120, 140], ["α<sub>R</sub>", -65, -42], ["α<sub>L</sub>", 57, 45]];
// Minima of a dipeptide in vacuum, which a protein does not have.
const MINIMA = [["C7<sub>eq</sub>", -82, 74], ["C7<sub>ax</sub>", 72, -62]];

// φ and ψ of all frames as dots, those of the current frame as diamonds.
class Ramachandran {
  constructor(parent, pick) {
    const { names } = data.torsions;
    this.names = names;
    this.phi = decode(data.torsions.phi, Int16Array);
    this.psi = decode(data.torsions.psi, Int16Array);
    const section = element("section", parent);
    element("h2", section, { textContent: names.length === 1 ? `Ramachandran map of ${names[0]}` : "Ramachandran map" });
    this.node = element("div", section);
    this.node.style.height = "400px";
    const stride = Math.ceil(this.phi.length / MOST_DOTS);
    const dots = [];
    for (let at = 0; at < this.phi.length; at += stride) dots.push(at);
    const frames = dots.map((at) => Math.floor(at / names.length));
    const single = data.captions.length === 1;
    const square = { range: [-180, 180], tickvals: [-180, -120, -60, 0, 60, 120, 180], constrain: "domain" };
    const traces = [{
      type: "scatter", mode: "markers", x: dots.map((at) => this.phi[at] / 10), y: dots.map((at) => this.psi[at] / 10),
      customdata: frames, text: dots.map((at, k) => `${names[at % names.length]}<br>${data.captions[frames[k]]}`),
      hovertemplate: "%{text}<br>φ %{x:.0f}°, ψ %{y:.0f}°<extra></extra>",
      marker: {
        size: dots.length > 3000 ? 3 : 5, opacity: 0.6, color: frames.map((frame) => data.x[frame]), colorscale: "Viridis",
        showscale: !single, colorbar: { title: { text: data.axis, side: "right" }, thickness: 12, outlinewidth: 0 },
      },
    }];
    const layout = {
      font: FONT, margin: { l: 60, r: 10, t: 8, b: 46 }, showlegend: false, hovermode: "closest",
      xaxis: axis("φ / °", { ...square, mirror: true }),
      yaxis: axis("ψ / °", { ...square, scaleanchor: "x", mirror: true }),
      annotations: [...REGIONS, ...(names.length === 1 ? MINIMA : [])].map(([text, x, y]) => ({ text, x, y, showarrow: false, font: { size: 16, color: "#8a94a3" } })),
    };
    this.ready = Plotly.newPlot(this.node, traces, layout, { displayModeBar: false, responsive: true }).then(() => {
      this.node.on("plotly_click", (event) => pick(event.points[0].customdata));
    });
  }

  show(frame) {
    const size = this.names.length > 20 ? 4 : 7; // degrees
    let path = "";
    for (let at = frame * this.names.length; at < (frame + 1) * this.names.length; at++) {
      const [x, y] = [this.phi[at] / 10, this.psi[at] / 10];
      path += `M${x - size},${y}L${x},${y + size}L${x + size},${y}L${x},${y - size}Z`;
    }
    // A shape is drawn much faster than the points of a trace.
    const here = { type: "path", path, fillrule: "nonzero", fillcolor: "rgba(214,69,69,0.85)", line: { color: "#fff", width: 1.2 } };
    return Plotly.relayout(this.node, { shapes: [here] });
  }
}

class Player {
  constructor() {
    this.frames = new Frames();
    this.frame = 0;
    this.timer = null;
    const main = document.getElementById("main");
    this.panel = element("section", main);
    const scene = element("div", this.panel, { className: "scene" });
    const periodic = this.frames.cells !== null;
    this.viewer = new Viewer(element("div", scene, { style: "width:100%;height:100%" }), this.frames.reach(), periodic ? [0.45, -1, 0.32] : [0, -1, 0.12]);
    legend(scene, data.elements, Object.keys(data.elements));
    if (this.frames.number > 1) this.controls();
    const others = [];
    const pick = (frame) => { this.stop(); this.show(frame); };
    this.averages = [];
    if (data.panels.length || data.torsions || data.observables.length) {
      main.className = "beside";
      const column = element("div", main, { className: "column" });
      if (data.panels.length) others.push(new Curves(column, pick));
      if (data.torsions) others.push(new Ramachandran(column, pick));
      this.averages = averages(column);
    }
    this.others = others;
  }

  controls() {
    const row = element("div", this.panel, { className: "controls" });
    this.button = element("button", row, { className: "play", textContent: "▶ Play", title: "space bar" });
    const step = (text, by) => {
      const button = element("button", row, { textContent: text, title: by < 0 ? "previous frame" : "next frame" });
      button.addEventListener("click", () => { this.stop(); this.show(this.frame + by); });
    };
    step("‹", -1);
    step("›", 1);
    this.slider = element("input", row, { type: "range", min: 0, max: this.frames.number - 1, value: 0, step: 1 });
    this.slider.setAttribute("aria-label", "frame");
    const label = element("label", row, { textContent: "frames/s " });
    this.rate = element("select", label);
    for (const rate of [2, 5, 10, 20, 40]) element("option", this.rate, { value: rate, textContent: rate, selected: rate === 10 });
    this.caption = element("p", this.panel, { className: "caption" });
    this.slider.addEventListener("input", () => { this.stop(); this.show(Number(this.slider.value)); });
    this.button.addEventListener("click", () => (this.timer === null ? this.play() : this.stop()));
    document.addEventListener("keydown", (event) => {
      if (event.key !== " " || ["BUTTON", "SELECT"].includes(event.target.tagName)) return;
      event.preventDefault();
      this.button.click();
    });
  }

  async play() {
    this.timer = true;
    this.button.textContent = "❚❚ Pause";
    while (this.timer !== null) {
      const started = performance.now();
      await this.show(this.frame + 1);
      const left = 1000 / Number(this.rate.value) - (performance.now() - started);
      await new Promise((done) => setTimeout(done, Math.max(left, 5)));
    }
  }

  stop() {
    if (this.timer === null) return;
    this.timer = null;
    this.button.textContent = "▶ Play";
  }

  drawLatest = latest((frame) => this.draw(frame));

  show(frame) {
    return this.drawLatest(((frame % this.frames.number) + this.frames.number) % this.frames.number);
  }

  async draw(frame) {
    this.frame = frame;
    const drawn = await this.viewer.drawFrame(this.frames, frame);
    for (const other of this.others) await other.show(frame);
    if (this.slider) {
      this.slider.value = frame;
      this.caption.innerHTML = "";
      element("b", this.caption, { textContent: data.captions[frame] });
      element("span", this.caption, { className: "faint", textContent: ` (${frame + 1} of ${this.frames.number})` });
    }
    // For tests: what is drawn.
    Object.assign(document.documentElement.dataset, {
      frames: this.frames.number, frame, atoms: drawn.atoms, bonds: drawn.bonds, panels: data.panels.length,
      residues: data.torsions ? data.torsions.names.length : 0,
    });
  }
}

async function start() {
  document.getElementById("summary").textContent = data.summary;
  for (const note of data.notes) element("p", document.getElementById("notes"), { textContent: note });
  const player = new Player();
  await Promise.all([...player.others.map((other) => other.ready), ...player.averages]);
  const asked = /^#frame=(\d+)$/.exec(location.hash);
  await player.show(asked ? Math.min(Number(asked[1]), player.frames.number - 1) : 0);
  document.documentElement.dataset.ready = "yes";
}

start();
