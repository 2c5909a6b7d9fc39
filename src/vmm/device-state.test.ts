import assert from "node:assert/strict";
import { test } from "node:test";
import { type ProcessorSection, processorSection as section } from "../../test/processor-section.ts";
import { isInterrupted, withoutCpuCommon } from "./device-state.ts";

const before = Buffer.from("QEVM\0\0\0\x03 timers, firmware ", "latin1");
const after = Buffer.from("\x04\0\0\0\x05\x03cpu registers, and a guest's bytes: \x0acpu_common", "latin1");

const state = (changed?: ProcessorSection) => Buffer.concat([before, section(changed), after]);
const rest = Buffer.concat([before, after]);

test("cpu_common is removed for a CPU that runs or is halted without a pending interrupt", () => {
  assert.deepEqual(withoutCpuCommon(state()), rest);
  assert.deepEqual(withoutCpuCommon(state({ halted: 1 })), rest);
  assert.ok(!isInterrupted(state()) && !isInterrupted(state({ halted: 1 })));
  assert.deepEqual(withoutCpuCommon(state({ number: 9 })), rest);
});

test("a state with a pending interrupt is left as it is", () => {
  const subsection = Buffer.from("\x05\x1acpu_common/crash_occurred", "latin1");
  const wrongFoot = Buffer.from([0x7e, 0, 0, 0, 5]);
  for (const changed of [
    ...[{ interrupts: 2 }, { interrupts: 0x10 }, { halted: 2 }, { instance: 1 }, { version: 2 }],
    ...[{ foot: subsection }, { foot: wrongFoot }],
  ]) {
    assert.equal(withoutCpuCommon(state(changed)), undefined, JSON.stringify(changed));
    assert.equal(isInterrupted(state(changed)), changed.interrupts !== undefined, JSON.stringify(changed));
  }
});

test("a state of unknown format is left as it is", () => {
  for (const other of [
    ...[Buffer.alloc(0), before, rest.subarray(0, before.length), Buffer.from("\x0acpu_common", "latin1")],
    ...[Buffer.concat([before, section()]).subarray(0, -1), Buffer.concat([Buffer.alloc(4_096), state()])],
  ]) {
    assert.equal(withoutCpuCommon(other), undefined, `${other.length} bytes`);
    assert.ok(!isInterrupted(other), `${other.length} bytes`);
  }
});
