// A ball-and-stick model in a scene of Plotly. Up to MOST_BALLS atoms are shaded balls, more are markers.

const MOST_BALLS = 700;
const NEAR = 1.25; // distance of the camera from the middle, in units of the scene

class Viewer {
  // reach: half the width of the scene, Å. eye: direction of the camera.
  constructor(node, reach, eye) {
    this.node = node;
    this.reach = reach;
    const length = Math.hypot(...eye);
    const [x, y, z] = eye.map((value) => (NEAR * value) / length);
    this.camera = { eye: { x, y, z }, center: { x: 0, y: 0, z: 0 }, up: { x: 0, y: 0, z: 1 } };
    this.zoom = 1;
    this.followed = false;
  }

  // positions [3N] of a Structure; cell: lattice vectors [9] or null, drawn from `corner` [3]; arrows: [3N] or null.
  async draw(structure, positions, cell, corner, arrows = null) {
    const near = structure.bonds(positions, cell);
    const traces = structure.size <= MOST_BALLS ? this.balls(structure, positions, near, cell)
      : this.markers(structure, positions, near, cell);
    if (cell) traces.push(...box(cell, corner));
    if (arrows) traces.push(...arrowLines(positions, arrows, this.reach));
    this.last = { structure, positions, cell, corner, arrows };
    await Plotly.react(this.node, traces, this.layout(), {
      displaylogo: false, responsive: true,
      modeBarButtons: [["toImage", "orbitRotation", "pan3d", "zoom3d", "resetCameraDefault3d"]],
      toImageButtonOptions: { format: "png", scale: 2, filename: "structure" },
    });
    if (!this.followed) this.follow();
    return { atoms: structure.size, bonds: near.length };
  }

  // A frame of Frames; arrows: [3N] or null.
  async drawFrame(frames, frame, arrows = null) {
    const cell = frames.cell(frame);
    return this.draw(frames.structure(frame), frames.positions(frame), cell, cell ? frames.corner(cell) : null, arrows);
  }

  // Markers have a size in pixels: they follow the zoom.
  follow() {
    this.followed = true;
    this.node.on("plotly_relayout", (change) => {
      const camera = change["scene.camera"];
      if (!camera || !this.last || this.last.structure.size <= MOST_BALLS) return;
      const { x, y, z } = camera.eye;
      const zoom = NEAR / Math.hypot(x, y, z);
      if (Math.abs(zoom / this.zoom - 1) < 0.05) return;
      this.zoom = zoom;
      const { structure, positions, cell, corner, arrows } = this.last;
      this.draw(structure, positions, cell, corner, arrows);
    });
  }

  layout() {
    const axis = { visible: false, range: [-this.reach, this.reach], autorange: false, showspikes: false };
    return {
      margin: { l: 0, r: 0, t: 0, b: 0 }, showlegend: false, uirevision: "kept", paper_bgcolor: "rgba(0,0,0,0)",
      hoverlabel: { font: { size: 15 } }, modebar: { bgcolor: "rgba(0,0,0,0)", color: "#7b8794", activecolor: "#1f2933" },
      scene: {
        xaxis: axis, yaxis: axis, zaxis: axis, aspectmode: "cube", camera: this.camera, dragmode: "orbit",
        bgcolor: "rgba(0,0,0,0)", uirevision: "kept",
      },
    };
  }

  balls(structure, positions, near, cell) {
    if (!structure.meshes) structure.make(ball(structure.size <= FINE_BALLS ? 2 : 1));
    const drawn = new Set(near);
    const traces = [];
    for (const [number, mesh] of structure.meshes) {
      const [x, y, z] = structure.vertices(mesh, positions, drawn, cell);
      traces.push({
        type: "mesh3d", x, y, z, i: mesh.i, j: mesh.j, k: mesh.k, text: mesh.text, hoverinfo: "text",
        color: structure.of(mesh.atoms[0]).colour, flatshading: false, uid: `element-${number}`,
        lighting: { ambient: 0.55, diffuse: 0.65, specular: 0.25, roughness: 0.35, fresnel: 0.05 },
        lightposition: { x: -2e3, y: -4e3, z: 5e3 },
      });
    }
    return traces;
  }

  markers(structure, positions, near, cell) {
    const pixels = (0.62 * this.zoom * Math.min(this.node.clientWidth, this.node.clientHeight)) / this.reach;
    const traces = [];
    const byElement = new Map();
    for (let atom = 0; atom < structure.size; atom++) {
      const number = structure.numbers[atom];
      if (!byElement.has(number)) byElement.set(number, []);
      byElement.get(number).push(atom);
    }
    const coordinate = (atoms, axis) => Float32Array.from(atoms, (atom) => positions[3 * atom + axis]);
    for (const [number, atoms] of byElement) {
      const { colour, size } = structure.of(atoms[0]);
      traces.push({
        type: "scatter3d", mode: "markers", uid: `element-${number}`, hoverinfo: "text",
        x: coordinate(atoms, 0), y: coordinate(atoms, 1), z: coordinate(atoms, 2),
        text: atoms.map((atom) => structure.labels[atom]),
        marker: {
          size: Math.max(2, pixels * size), color: colour, opacity: 1, line: { color: "rgba(40,50,60,0.65)", width: 1 },
        },
      });
    }
    const ends = [[], [], []];
    for (const bond of near) {
      const along = structure.along(bond, positions, cell);
      const [a, b] = [3 * structure.pairs[2 * bond], 3 * structure.pairs[2 * bond + 1]];
      ends.forEach((list, axis) => {
        const middle = 0.5 * along[axis];
        list.push(positions[a + axis], positions[a + axis] + middle, null, positions[b + axis] - middle, positions[b + axis], null);
      });
    }
    traces.push({
      type: "scatter3d", mode: "lines", uid: "bonds", hoverinfo: "skip", x: ends[0], y: ends[1], z: ends[2],
      line: { color: "#7b8794", width: Math.max(1.5, pixels * STICK) },
    });
    return traces;
  }
}

// Lines from atoms along vectors [3N], the longest a fifth of the scene, with a dot at each end.
function arrowLines(positions, vectors, reach) {
  let most = 0;
  for (let k = 0; k < vectors.length; k += 3) most = Math.max(most, Math.hypot(vectors[k], vectors[k + 1], vectors[k + 2]));
  const factor = most > 0 ? (0.35 * reach) / most : 0;
  const lines = [[], [], []];
  const tips = [[], [], []];
  for (let k = 0; k < vectors.length; k += 3) {
    if (Math.hypot(vectors[k], vectors[k + 1], vectors[k + 2]) < 0.02 * most) continue;
    for (let axis = 0; axis < 3; axis++) {
      const [start, end] = [positions[k + axis], positions[k + axis] + factor * vectors[k + axis]];
      lines[axis].push(start, end, null);
      tips[axis].push(end);
    }
  }
  const colour = "#d64545";
  return [
    { type: "scatter3d", mode: "lines", uid: "arrows", x: lines[0], y: lines[1], z: lines[2], hoverinfo: "skip",
      line: { color: colour, width: 9 } },
    { type: "scatter3d", mode: "markers", uid: "tips", x: tips[0], y: tips[1], z: tips[2], hoverinfo: "skip",
      marker: { size: 6, color: colour, opacity: 1 } },
  ];
}

// The twelve edges of a cell, and the names of its vectors.
function box(cell, corner) {
  const point = (a, b, c) => [0, 1, 2].map((axis) => corner[axis] + a * cell[axis] + b * cell[3 + axis] + c * cell[6 + axis]);
  const lines = [[], [], []];
  const add = (p) => lines.forEach((line, axis) => line.push(p ? p[axis] : null));
  for (const [u, v] of [[0, 0], [0, 1], [1, 0], [1, 1]]) {
    add(point(0, u, v)); add(point(1, u, v)); add(null);
    add(point(u, 0, v)); add(point(u, 1, v)); add(null);
    add(point(u, v, 0)); add(point(u, v, 1)); add(null);
  }
  const ends = [point(1.06, 0, 0), point(0, 1.06, 0), point(0, 0, 1.06)];
  return [
    { type: "scatter3d", mode: "lines", uid: "cell", x: lines[0], y: lines[1], z: lines[2], hoverinfo: "skip",
      line: { color: "#52606d", width: 2.5 } },
    { type: "scatter3d", mode: "text", uid: "vectors", x: ends.map((p) => p[0]), y: ends.map((p) => p[1]),
      z: ends.map((p) => p[2]), text: ["a", "b", "c"], hoverinfo: "skip", textfont: { size: 15, color: "#3e4c59" } },
  ];
}

// Makes a function that draws a frame; of frames asked for while one is drawn, only the last is drawn next.
function latest(draw) {
  let [wanted, drawing] = [null, null];
  const run = async () => {
    try {
      while (wanted !== null) {
        const next = wanted;
        wanted = null;
        await draw(next);
      }
    } finally {
      drawing = null;
    }
  };
  return (frame) => {
    wanted = frame;
    drawing ??= run();
    return drawing;
  };
}

// The colours of the elements, below the model.
function legend(parent, elements, numbers) {
  const node = document.createElement("div");
  node.className = "legend";
  for (const number of numbers) {
    const item = document.createElement("span");
    const dot = document.createElement("i");
    dot.style.background = elements[number].colour;
    item.append(dot, elements[number].symbol);
    node.append(item);
  }
  parent.append(node);
}
