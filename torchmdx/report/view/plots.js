// What the plots of all pages share.

const FONT = { family: "system-ui, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif", size: 13, color: "#1f2933" };
const GRID = "#e4e9ee";
const data = JSON.parse(document.getElementById("data").textContent);

function element(tag, parent, settings = {}) {
  const node = Object.assign(document.createElement(tag), settings);
  parent.append(node);
  return node;
}

function axis(title, more = {}) {
  return {
    title: { text: title, standoff: 8, font: { size: 13 } }, gridcolor: GRID, zeroline: false, linecolor: "#9aa5b1",
    showline: true, ticks: "outside", tickcolor: "#9aa5b1", automargin: true, ...more,
  };
}

// Frames: positions in Å, the structure and the cell of each.
class Frames {
  constructor() {
    this.packed = decode(data.positions, Int16Array);
    this.structures = data.kinds.map((kind) => new Structure(kind, data.elements, data.tolerance));
    this.number = data.captions.length;
    this.starts = [0];
    for (let frame = 0; frame < this.number; frame++) {
      this.starts.push(this.starts[frame] + 3 * this.structure(frame).size);
    }
    this.cells = data.cells === null ? null : decode(data.cells, Float32Array);
  }

  structure(frame) {
    return this.structures[data.kindOf === null ? 0 : data.kindOf[frame]];
  }

  positions(frame) {
    return Float32Array.from(this.packed.subarray(this.starts[frame], this.starts[frame + 1]), (value) => value * data.scale);
  }

  cell(frame) {
    if (this.cells === null) return null;
    const start = this.cells.length === 9 ? 0 : 9 * frame;
    const cell = this.cells.subarray(start, start + 9);
    return cell.some((value) => value !== 0) ? cell : null;
  }

  corner(cell) {
    const half = (axis) => -0.5 * data.repeats.reduce((sum, times, row) => sum + times * cell[3 * row + axis], 0);
    return [half(0), half(1), half(2)];
  }

  // Half the width of a scene that holds the frames from first to last.
  reach(first = 0, last = this.number - 1) {
    let most = 0;
    for (let at = this.starts[first]; at < this.starts[last + 1]; at += 3) {
      const [x, y, z] = [this.packed[at], this.packed[at + 1], this.packed[at + 2]];
      most = Math.max(most, x * x + y * y + z * z);
    }
    let reach = Math.sqrt(most) * data.scale + 0.8;
    for (let frame = first; frame <= last; frame++) {
      const cell = this.cell(frame);
      if (cell) reach = Math.max(reach, 1.15 * Math.hypot(...this.corner(cell)));
      if (this.cells === null || this.cells.length === 9) break;
    }
    return reach;
  }
}
