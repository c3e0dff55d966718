"use strict";
// Structures and the meshes of their balls and sticks.

const FINE_BALLS = 120; // atoms up to which balls have many faces
const STICK = 0.11; // radius of a bond, Å
const SIDES = 8; // of a bond's cylinder

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
    this.shifts = decode(data.shifts, Int8Array); // of the last bonds, which cross faces of the cell
    this.inside = this.pairs.length / 2 - this.shifts.length / 3;
    this.longest = new Float32Array(this.pairs.length / 2);
    for (let k = 0; k < this.longest.length; k++) {
      const [a, b] = [this.pairs[2 * k], this.pairs[2 * k + 1]];
      this.longest[k] = this.of(a).radius + this.of(b).radius + tolerance;
    }
    this.meshes = null;
  }

  // From the first atom of a bond to the second, which is in another image of the cell if the bond crosses a face.
  along(bond, positions, cell) {
    const [a, b] = [3 * this.pairs[2 * bond], 3 * this.pairs[2 * bond + 1]];
    const at = 3 * (bond - this.inside);
    return [0, 1, 2].map((axis) => {
      let value = positions[b + axis] - positions[a + axis];
      if (at >= 0) for (let row = 0; row < 3; row++) value += this.shifts[at + row] * cell[3 * row + axis];
      return value;
    });
  }

  // Of the possible bonds those whose atoms are near in these positions.
  bonds(positions, cell) {
    const found = [];
    const number = cell ? this.longest.length : this.inside;
    for (let k = 0; k < number; k++) {
      if (Math.hypot(...this.along(k, positions, cell)) < this.longest[k]) found.push(k);
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
      meshes.get(this.numbers[a]).halves.push([a, 1, k]);
      meshes.get(this.numbers[b]).halves.push([b, -1, k]);
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
  vertices(mesh, positions, near, cell) {
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
    for (const [from, sign, bond] of mesh.halves) {
      const start = [0, 1, 2].map((axis) => positions[3 * from + axis]);
      const drawn = near.has(bond);
      const along = drawn ? this.along(bond, positions, cell).map((value) => sign * value) : [1, 0, 0];
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
