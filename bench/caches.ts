/**
 * How much of the caches of this machine is left to us: the time of a read from anywhere in as much memory as an emulated
 * command goes through. Each read says where the next is, so none begins before the last has ended.
 */

/** More than a core's own caches hold, and less than what cores share. */
const bytes = 6 << 20;
const lineBytes = 64;
const reads = 20_000;

let lines: Int32Array | undefined;
let at = 0;

/** Nanoseconds a read, when all of that memory has just been read. */
export function readAnywhere(): number {
  lines ??= ringOfLines();
  follow(lines, bytes / lineBytes);
  const began = performance.now();
  follow(lines, reads);
  return ((performance.now() - began) * 1e6) / reads;
}

function follow(ring: Int32Array, count: number): void {
  for (let read = 0; read < count; read++) at = ring[at]!;
}

/** All lines of the memory in one ring, in an order that nothing can foresee. */
function ringOfLines(): Int32Array {
  const perLine = lineBytes / Int32Array.BYTES_PER_ELEMENT;
  const order = Array.from({ length: bytes / lineBytes }, (_, line) => line * perLine);
  for (let left = order.length - 1; left > 0; left--) {
    const other = Math.floor(Math.random() * (left + 1));
    [order[left], order[other]] = [order[other]!, order[left]!];
  }
  const ring = new Int32Array(bytes / Int32Array.BYTES_PER_ELEMENT);
  for (const [place, line] of order.entries()) ring[line] = order[(place + 1) % order.length]!;
  return ring;
}
