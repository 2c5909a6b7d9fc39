/**
 * Saved device state as far as we look into it: a header of 8 bytes, then a section for each device, which begins with its
 * number and its name and has no length. We know the one in which QEMU keeps of a processor what is the same on every
 * architecture. Big-endian:
 *
 *      u8 4, u32 number | u8 10, "cpu_common", u32 instance, u32 version | u32 halted, u32 interrupts | u8 0x7e, u32 number
 */

const name = "cpu_common";
const headBytes = 5;
const contentAt = headBytes + 1 + name.length + 8;
const footAt = contentAt + 8;
const sectionBytes = footAt + 5;
/** Only the timers and the firmware's configuration come before it; a guest chooses no eleven bytes in a row of them. */
const searchBytes = 512;

/**
 * The state without that section, for a QEMU whose only processor has just been reset, and so counts as not halted and not
 * interrupted. One that sleeps, with no interrupt to wake it, may be taken for one that was just woken: whoever halts a
 * processor has to look why it goes on. Undefined when more than that is in it, or something else than expected.
 *
 * QEMU throws away all that it has translated when it loads this section, and no other makes it do so.
 */
export function withoutCpuCommon(state: Buffer): Buffer | undefined {
  const { start, interrupts } = processorIn(state) ?? {};
  if (start === undefined || interrupts !== 0) return undefined;
  return Buffer.concat([state.subarray(0, start), state.subarray(start + sectionBytes)]);
}

/** Whether that section is in the state, and says that an interrupt waits for the processor. */
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
