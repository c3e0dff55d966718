"use strict";
// A ball-and-stick model in a scene of Plotly. Up to MOST_BALLS atoms are shaded balls, more are markers.

const MOST_BALLS = 700;
const FINE_BALLS = 120;
const STICK = 0.11; // radius of a bond, Å
const SIDES = 8; // of a bond's cylinder
const NEAR = 1.12; // distance of the camera from the middle, in units of the scene

function decode(text, Type) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let k = 0; k < raw.length; k++) bytes[k] = raw.charCodeAt(k);
  return new Type(bytes.buffer);
}

// A ball of radius 1 from an icosahedron whose faces are divided `times` times.
function ball(times) {
  const t = (1 + Math.sqrt(5)) / 2;
  let points = [
    [-1, t, 0], [1, t, 0], [-1, -t, 0], [1, -t, 0], [0, -1, t], [0, 1, t],
    [0, -1, -t], [0, 1, -t], [t, 0, -1], [t, 0, 1], [-t, 0, -1], [-t, 0, 1],
  ].map((p) => p.map((v) => v / Math.hypot(1, t)));
  let faces = [
    [0, 11, 5], [0, 5, 1], [0, 1, 7], [0, 7, 10], [0, 10, 11], [1, 5, 9], [5, 11, 4], [11, 10, 2], [10, 7, 6],
    [7, 1, 8], [3, 9, 4], [3, 4, 2], [3, 2, 6], [3, 6, 8], [3, 8, 9], [4, 9, 5], [2, 4, 11], [6, 2, 10], [8, 6, 7],
    [9, 8, 1],
  ];
  for (let round = 0; round < times; round++) {
    const known = new Map();
    const between = (a, b) => {
      const key = a < b ? `${a} ${b}` : `${b} ${a}`;
      if (!known.has(key)) {
        const p = points[a].map((v, k) => v + points[b][k]);
        known.set(key, points.push(p.map((v) => v / Math.hypot(...p))) - 1);
      }
      return known.get(key);
    };
    faces = faces.flatMap(([a, b, c]) => {
      const [d, e, f] = [between(a, b), between(b, c), between(c, a)];
      return [[a, d, f], [b, e, d], [c, f, e], [d, e, f]];
    });
  }
  return { points, faces };
}

// One structure: elements, possible bonds, labels, and what does not change from frame to frame.
class Structure {
  constructor(data, elements, tolerance) {
    this.numbers = decode(data.numbers, Uint8Array);
    this.pairs = decode(data.pairs, Uint16Array);
    this.size = this.numbers.length;
    this.of = (atom) => elements[this.numbers[atom]];
    const own = (atom) => `${this.of(atom).symbol} <b>${atom}</b>`;
    this.labels = Array.from(this.numbers, (_, k) => own(k) + (data.labels ? `<br>${data.labels[k]}` : ""));
    this.longest = new Float32Array(this.pairs.length / 2);
    for (let k = 0; k < this.longest.length; k++) {
      const [a, b] = [this.pairs[2 * k], this.pairs[2 * k + 1]];
      this.longest[k] = this.of(a).radius + this.of(b).radius + tolerance;
    }
    this.meshes = null;
  }

  // Of the possible bonds those whose atoms are near in these positions.
  bonds(positions) {
    const found = [];
    for (let k = 0; k < this.longest.length; k++) {
      const [a, b] = [3 * this.pairs[2 * k], 3 * this.pairs[2 * k + 1]];
      const length = Math.hypot(
        positions[a] - positions[b], positions[a + 1] - positions[b + 1], positions[a + 2] - positions[b + 2]);
      if (length < this.longest[k]) found.push(k);
    }
    return found;
  }

  // A mesh for each element: balls, and the near halves of all possible bonds.
  make(shape) {
    const meshes = new Map();
    for (let atom = 0; atom < this.size; atom++) {
      const number = this.numbers[atom];
      if (!meshes.has(number)) meshes.set(number, { atoms: [], halves: [] });
      meshes.get(number).atoms.push(atom);
    }
    for (let k = 0; k < this.longest.length; k++) {
      const [a, b] = [this.pairs[2 * k], this.pairs[2 * k + 1]];
      meshes.get(this.numbers[a]).halves.push([a, b, k]);
      meshes.get(this.numbers[b]).halves.push([b, a, k]);
    }
    for (const mesh of meshes.values()) {
      const { points, faces } = shape;
      mesh.i = []; mesh.j = []; mesh.k = []; mesh.text = [];
      const add = (a, b, c) => { mesh.i.push(a); mesh.j.push(b); mesh.k.push(c); };
      mesh.atoms.forEach((atom, place) => {
        const start = place * points.length;
        for (const [a, b, c] of faces) add(start + a, start + b, start + c);
        for (let n = 0; n < points.length; n++) mesh.text.push(this.labels[atom]);
      });
      mesh.halves.forEach(([atom], place) => {
        const start = mesh.atoms.length * points.length + place * 2 * SIDES;
        for (let n = 0; n < SIDES; n++) {
          const [a, b] = [start + n, start + ((n + 1) % SIDES)];
          add(a, b, a + SIDES); add(b, b + SIDES, a + SIDES);
        }
        for (let n = 0; n < 2 * SIDES; n++) mesh.text.push(this.labels[atom]);
      });
    }
    this.meshes = meshes;
    this.shape = shape;
  }

  // Vertices of an element's mesh; a bond that is not drawn shrinks into its atom.
  vertices(mesh, positions, near) {
    const { points } = this.shape;
    const number = mesh.atoms.length * points.length + mesh.halves.length * 2 * SIDES;
    const out = [0, 1, 2].map(() => new Float32Array(number));
    let at = 0;
    for (const atom of mesh.atoms) {
      const size = this.of(atom).size;
      for (const point of points) {
        for (let axis = 0; axis < 3; axis++) out[axis][at] = positions[3 * atom + axis] + size * point[axis];
        at++;
      }
    }
    for (const [from, to, bond] of mesh.halves) {
      const start = [0, 1, 2].map((axis) => positions[3 * from + axis]);
      const along = [0, 1, 2].map((axis) => positions[3 * to + axis] - start[axis]);
      const drawn = near.has(bond);
      const length = Math.hypot(...along) || 1;
      const [u, v] = across(along.map((value) => value / length));
      for (let end = 0; end < 2; end++) {
        for (let n = 0; n < SIDES; n++) {
          const angle = (2 * Math.PI * n) / SIDES;
          const [c, s] = drawn ? [STICK * Math.cos(angle), STICK * Math.sin(angle)] : [0, 0];
          for (let axis = 0; axis < 3; axis++) {
            out[axis][at] = start[axis] + (drawn ? 0.5 * end * along[axis] : 0) + c * u[axis] + s * v[axis];
          }
          at++;
        }
      }
    }
    return out;
  }
}

function cross(a, b) {
  return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
}

// Two unit vectors normal to a unit vector and to each other.
function across(axis) {
  const helper = Math.abs(axis[0]) < 0.7 ? [1, 0, 0] : [0, 1, 0];
  const u = cross(axis, helper);
  const length = Math.hypot(...u);
  const first = u.map((value) => value / length);
  return [first, cross(axis, first)];
}

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
    const near = structure.bonds(positions);
    const traces = structure.size <= MOST_BALLS ? this.balls(structure, positions, near)
      : this.markers(structure, positions, near);
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

  balls(structure, positions, near) {
    if (!structure.meshes) structure.make(ball(structure.size <= FINE_BALLS ? 2 : 1));
    const drawn = new Set(near);
    const traces = [];
    for (const [number, mesh] of structure.meshes) {
      const [x, y, z] = structure.vertices(mesh, positions, drawn);
      traces.push({
        type: "mesh3d", x, y, z, i: mesh.i, j: mesh.j, k: mesh.k, text: mesh.text, hoverinfo: "text",
        color: structure.of(mesh.atoms[0]).colour, flatshading: false, uid: `element ${number}`,
        lighting: { ambient: 0.55, diffuse: 0.65, specular: 0.25, roughness: 0.35, fresnel: 0.05 },
        lightposition: { x: -2e3, y: -4e3, z: 5e3 },
      });
    }
    return traces;
  }

  markers(structure, positions, near) {
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
        type: "scatter3d", mode: "markers", uid: `element ${number}`, hoverinfo: "text",
        x: coordinate(atoms, 0), y: coordinate(atoms, 1), z: coordinate(atoms, 2),
        text: atoms.map((atom) => structure.labels[atom]),
        marker: {
          size: Math.max(2, pixels * size), color: colour, opacity: 1, line: { color: "rgba(40,50,60,0.65)", width: 1 },
        },
      });
    }
    const ends = near.flatMap((bond) => [structure.pairs[2 * bond], structure.pairs[2 * bond + 1], null]);
    const line = (axis) => ends.map((atom) => (atom === null ? null : positions[3 * atom + axis]));
    traces.push({
      type: "scatter3d", mode: "lines", uid: "bonds", hoverinfo: "skip", x: line(0), y: line(1), z: line(2),
      line: { color: "#7b8794", width: Math.max(1.5, pixels * STICK) },
    });
    return traces;
  }
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
