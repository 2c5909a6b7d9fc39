/** The section of a saved device state that src/vmm/device-state.ts reads. */

export interface ProcessorSection {
  number?: number;
  instance?: number;
  version?: number;
  halted?: number;
  interrupts?: number;
  foot?: Buffer;
}

export function processorSection({
  number = 4,
  instance = 0,
  version = 1,
  halted = 0,
  interrupts = 0,
  foot,
}: ProcessorSection = {}): Buffer {
  const word = (value: number) => Buffer.from([value >>> 24, value >>> 16, value >>> 8, value]);
  const head = [Buffer.from([4]), word(number), Buffer.from("\x0acpu_common", "latin1"), word(instance), word(version)];
  const content = [word(halted), word(interrupts)];
  return Buffer.concat([...head, ...content, foot ?? Buffer.concat([Buffer.from([0x7e]), word(number)])]);
}
