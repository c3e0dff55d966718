// The page of a report: parity plots; the frame under the pointer is named, and its structure shown with its errors.

const AXES = ["x", "y", "z"];

function digits(value, count = 4) {
  return value === null || !Number.isFinite(value) ? "–" : Number(value.toPrecision(count)).toLocaleString("en", { maximumSignificantDigits: count });
}

// Labels and predictions of one quantity of all sets. pick: called with the number of a frame.
class Parity {
  constructor(parent, title, unit, series, pick) {
    const section = element("section", parent);
    element("h2", section, { textContent: title });
    this.node = element("div", section, { className: "parity" });
    const values = series.flatMap(({ x, y }) => [...x, ...y]).filter(Number.isFinite);
    const [low, high] = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
    const margin = 0.04 * (high - low) || 0.05;
    const range = [low - margin, high + margin];
    const traces = [{
      type: "scatter", mode: "lines", x: range, y: range, line: { color: "#9aa5b1", width: 1 }, hoverinfo: "skip", showlegend: false,
    }];
    for (const one of series) {
      traces.push({
        type: "scatter", mode: "markers", name: one.name, x: one.x, y: one.y, customdata: one.frames, text: one.text,
        marker: { size: one.x.length > 2000 ? 4 : 6, color: one.colour, opacity: 0.55 },
        hovertemplate: "%{text}<extra></extra>",
      });
    }
    const layout = {
      font: FONT, margin: { l: 64, r: 12, t: 8, b: 50 }, hovermode: "closest", showlegend: series.length > 1,
      legend: { x: 0.02, y: 0.98, bgcolor: "rgba(255,255,255,0.7)" }, hoverlabel: { font: { size: 14 }, align: "left" },
      xaxis: axis(`label / ${unit}`, { range, mirror: true, constrain: "domain" }),
      yaxis: axis(`predicted / ${unit}`, { range, mirror: true, scaleanchor: "x", constrain: "domain" }),
    };
    const settings = { displaylogo: false, responsive: true, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };
    this.ready = Plotly.newPlot(this.node, traces, layout, settings).then(() => {
      this.node.on("plotly_hover", (event) => pick(event.points[0].customdata, false));
      this.node.on("plotly_click", (event) => pick(event.points[0].customdata, true));
    });
  }
}

class Report {
  constructor() {
    this.frames = new Frames();
    this.forces = decode(data.forces, Float32Array);
    const main = document.getElementById("main");
    main.className = "beside";
    const column = element("div", main, { className: "column" });
    this.pinned = false;
    const pick = (frame, pin) => {
      if (pin) this.pinned = this.shown !== frame || !this.pinned;
      if (pin || !this.pinned) this.show(frame);
    };
    this.plots = [];
    const energies = data.sets.map((set) => this.energySeries(set)).filter((one) => one.x.length);
    const forces = data.sets.map((set) => this.forceSeries(set)).filter((one) => one.x.length);
    const { units } = data;
    if (energies.length) this.plots.push(new Parity(column, "Energies per atom", units.energy, energies, pick));
    if (forces.length) this.plots.push(new Parity(column, "Force components", units.forces, forces, pick));
    this.panel = element("section", main, { className: "sticky" });
    this.heading = element("h2", this.panel);
    const scene = element("div", this.panel, { className: "scene" });
    this.viewer = new Viewer(element("div", scene, { style: "width:100%;height:100%" }), this.frames.reach(0, 0), [0.45, -1, 0.32]);
    legend(scene, data.elements, Object.keys(data.elements));
    this.table = element("table", this.panel);
    element("p", this.panel, { className: "faint", textContent: "Point at a dot to see its frame; click to keep it. Red lines are errors of forces, prediction minus label." });
  }

  caption(frame) {
    return `<b>${data.captions[frame]}</b>`;
  }

  // Force labels and predictions of a frame [2][3N].
  forcesOf(frame) {
    const [start, end] = [this.frames.starts[frame], this.frames.starts[frame + 1]];
    const middle = start + end;
    return [this.forces.subarray(2 * start, middle), this.forces.subarray(middle, 2 * end)];
  }

  energySeries(set) {
    const { units } = data;
    const kept = set.label.map((value, k) => k).filter((k) => set.label[k] !== null && set.predicted[k] !== null);
    const error = (k) => (set.predicted[k] - set.label[k]) * units.energyFactor;
    return {
      name: set.name, colour: set.colour, x: kept.map((k) => set.label[k]), y: kept.map((k) => set.predicted[k]),
      frames: kept.map((k) => set.start + k),
      text: kept.map((k) => `${this.caption(set.start + k)}<br>error ${digits(error(k))} ${units.energyError}`),
    };
  }

  forceSeries(set) {
    const { units } = data;
    const [place, component] = [decode(set.place, Uint16Array), decode(set.component, Uint16Array)];
    const one = { name: set.name, colour: set.colour, x: [], y: [], frames: [], text: [] };
    place.forEach((local, k) => {
      const frame = set.start + local;
      const [label, predicted] = this.forcesOf(frame).map((forces) => forces[component[k]]);
      const atom = Math.floor(component[k] / 3);
      const structure = this.frames.structure(frame);
      one.x.push(label);
      one.y.push(predicted);
      one.frames.push(frame);
      one.text.push(`${this.caption(frame)}<br>${structure.of(atom).symbol} ${atom}, ${AXES[component[k] % 3]}: error `
        + `${digits((predicted - label) * units.forcesFactor)} ${units.forcesError}`);
    });
    return one;
  }

  row(name, label, predicted, error) {
    const row = element("tr", this.table);
    for (const text of [name, label, predicted, error]) element("td", row, { textContent: text });
  }

  describe(frame) {
    const { units } = data;
    const set = data.sets.findLast((one) => one.start <= frame);
    const local = frame - set.start;
    this.heading.textContent = `${data.captions[frame]}${data.sets.length > 1 ? ` (${set.name})` : ""}`;
    this.table.replaceChildren();
    const head = element("tr", this.table);
    for (const text of ["", "label", "predicted", "error"]) element("th", head, { textContent: text });
    const [label, predicted] = [set.label[local], set.predicted[local]];
    const error = label === null ? null : (predicted - label) * units.energyFactor;
    this.row(`energy per atom / ${units.energy}`, digits(label, 6), digits(predicted, 6), `${digits(error)} ${units.energyError}`);
    const [labels, predictions] = this.forcesOf(frame);
    let worst = -1;
    labels.forEach((value, k) => {
      const size = Math.abs(predictions[k] - value);
      if (Number.isFinite(size) && (worst < 0 || size > Math.abs(predictions[worst] - labels[worst]))) worst = k;
    });
    if (worst < 0) return;
    const atom = Math.floor(worst / 3);
    this.row(`force on ${this.frames.structure(frame).of(atom).symbol} ${atom}, ${AXES[worst % 3]} / ${units.forces}`,
      digits(labels[worst]), digits(predictions[worst]),
      `${digits((predictions[worst] - labels[worst]) * units.forcesFactor)} ${units.forcesError}, the largest`);
  }

  show = latest((frame) => this.draw(frame));

  async draw(frame) {
    this.shown = frame;
    this.describe(frame);
    const [labels, predictions] = this.forcesOf(frame);
    const errors = Float32Array.from(labels, (value, k) => (Number.isFinite(value) ? predictions[k] - value : 0));
    this.viewer.reach = this.frames.reach(frame, frame);
    const drawn = await this.viewer.drawFrame(this.frames, frame, errors);
    // For tests: what is drawn.
    Object.assign(document.documentElement.dataset, {
      frames: this.frames.number, frame, atoms: drawn.atoms, bonds: drawn.bonds, plots: this.plots.length,
      dots: this.plots.map((plot) => plot.node.data.reduce((sum, trace) => sum + (trace.mode === "markers" ? trace.x.length : 0), 0)).join(" "),
    });
  }

  // The frame with the largest energy error, or the first.
  worst() {
    let [best, most] = [0, -1];
    for (const set of data.sets) {
      set.label.forEach((label, k) => {
        if (label === null || set.predicted[k] === null) return;
        const size = Math.abs(set.predicted[k] - label);
        if (size > most) [best, most] = [set.start + k, size];
      });
    }
    return best;
  }
}

async function start() {
  document.getElementById("summary").textContent = data.summary;
  for (const note of data.notes) element("p", document.getElementById("notes"), { textContent: note });
  const report = new Report();
  await Promise.all(report.plots.map((plot) => plot.ready));
  await report.show(report.worst());
  document.documentElement.dataset.ready = "yes";
}

start();
