import assert from "node:assert/strict";
import { test } from "node:test";
import { withoutProcessor } from "./device-state.ts";

const before = Buffer.from("QEVM\0\0\0\x03 timers, firmware ", "latin1");
const after = Buffer.from("\x04\0\0\0\x05\x03cpu registers, and a guest's bytes: \x0acpu_common", "latin1");

interface Section {
  number?: number;
  instance?: number;
  version?: number;
  halted?: number;
  interrupts?: number;
  foot?: Buffer;
}

function section({ number = 4, instance = 0, version = 1, halted = 0, interrupts = 0, foot }: Section = {}): Buffer {
  const word = (value: number) => Buffer.from([value >>> 24, value >>> 16, value >>> 8, value]);
  const head = [Buffer.from([4]), word(number), Buffer.from("\x0acpu_common", "latin1"), word(instance), word(version)];
  const content = [word(halted), word(interrupts)];
  return Buffer.concat([...head, ...content, foot ?? Buffer.concat([Buffer.from([0x7e]), word(number)])]);
}

const state = (changed?: Section) => Buffer.concat([before, section(changed), after]);
const rest = Buffer.concat([before, after]);

test("of a processor that runs or sleeps, and that nothing interrupts, the state is whole without its section", () => {
  assert.deepEqual(withoutProcessor(state()), rest);
  assert.deepEqual(withoutProcessor(state({ halted: 1 })), rest);
  assert.deepEqual(withoutProcessor(state({ number: 9 })), rest);
});

test("what says more than a reset processor is left as it is", () => {
  const subsection = Buffer.from("\x05\x1acpu_common/crash_occurred", "latin1");
  const wrongFoot = Buffer.from([0x7e, 0, 0, 0, 5]);
  for (const changed of [
    ...[{ interrupts: 2 }, { interrupts: 0x10 }, { halted: 2 }, { instance: 1 }, { version: 2 }],
    ...[{ foot: subsection }, { foot: wrongFoot }],
  ]) {
    assert.equal(withoutProcessor(state(changed)), undefined, JSON.stringify(changed));
  }
});

test("what is no such state is left as it is", () => {
  for (const other of [
    ...[Buffer.alloc(0), before, rest.subarray(0, before.length), Buffer.from("\x0acpu_common", "latin1")],
    ...[Buffer.concat([before, section()]).subarray(0, -1), Buffer.concat([Buffer.alloc(4_096), state()])],
  ]) {
    assert.equal(withoutProcessor(other), undefined, `${other.length} bytes`);
  }
});
