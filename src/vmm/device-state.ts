/**
 * One section of a saved device state. The state is a header of 8 bytes and a section per device, which begins with its number
 * and name and has no length. `cpu_common` is the part of a CPU that is the same on every architecture. Big-endian:
 *
 *      u8 4, u32 number | u8 10, "cpu_common", u32 instance, u32 version | u32 halted, u32 interrupts | u8 0x7e, u32 number
 */

const name = "cpu_common";
const headBytes = 5;
const contentAt = headBytes + 1 + name.length + 8;
const footAt = contentAt + 8;
const sectionBytes = footAt + 5;
/** Only timers and firmware configuration come before it, in which a guest controls no eleven consecutive bytes. */
const searchBytes = 512;

/**
 * The state without `cpu_common`, for a QEMU whose only CPU was just reset, so that it counts as neither halted nor
 * interrupted. A halted CPU then continues as if it had been woken, which every halt loop of a kernel handles. Undefined when
 * an interrupt is pending, or the section has an unknown format.
 *
 * Loading this section makes QEMU flush its whole translation cache; no other section does.
 */
export function withoutCpuCommon(state: Buffer): Buffer | undefined {
  const { start, interrupts } = processorIn(state) ?? {};
  if (start === undefined || interrupts !== 0) return undefined;
  return Buffer.concat([state.subarray(0, start), state.subarray(start + sectionBytes)]);
}

/** Whether the section is there and has a pending interrupt. */
export function isInterrupted(state: Buffer): boolean {
  return (processorIn(state)?.interrupts ?? 0) !== 0;
}

function processorIn(state: Buffer): { start: number; interrupts: number } | undefined {
  const found = state.subarray(0, searchBytes).indexOf(`\n${name}`, 0, "latin1");
  const start = found - headBytes;
  if (found === -1 || start < 0 || start + sectionBytes > state.length) return undefined;
  const section = state.subarray(start, start + sectionBytes);
  const number = section.readUInt32BE(1);
  const [instance, version] = [section.readUInt32BE(contentAt - 8), section.readUInt32BE(contentAt - 4)];
  const [halted, interrupts] = [section.readUInt32BE(contentAt), section.readUInt32BE(contentAt + 4)];
  const isWhole = section[0] === 4 && section[footAt] === 0x7e && section.readUInt32BE(footAt + 1) === number;
  return isWhole && instance === 0 && version === 1 && halted <= 1 ? { start, interrupts } : undefined;
}
