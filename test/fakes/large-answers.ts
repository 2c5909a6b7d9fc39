/**
 * A server in a process of its own whose capsules give the largest answers that the limits allow, of control characters.
 * It reports its address and keys, and when asked its largest memory, how much JSON it made in one turn of its event loop, and
 * how long the longest one was: that depends on the machine.
 */
import type { AddressInfo } from "node:net";
import { monitorEventLoopDelay } from "node:perf_hooks";
import { Api } from "../api.ts";

const control = "\u0001";
const api = new Api();
await api.app.listen({ host: "127.0.0.1", port: 0 });
const { teams } = api.service;
const keys = ["red", "blue", "green", "white"].map((team) => teams.createKey(teams.ensure(team).id, "attack").key);

function* entries() {
  const path = `/${control.repeat(4_095)}`;
  const entry = {
    type: "file",
    size: 1,
    mode: 0o100644,
    owner: "root",
    group: "root",
    mtime: 1,
    target: null,
  } as const;
  for (let i = 0; i < 4_000; i++) yield { ...entry, name: "f", path };
}

function* processes() {
  const args = Array.from({ length: 32 }, () => control.repeat(4_096));
  for (let pid = 2; pid < 90; pid++) yield { pid, tag: "", cmd: "x", args };
}

/** Most characters that were encoded as JSON in one tick of the event loop. */
let encodedMax = 0;
let encoded = 0;
const stringify = JSON.stringify;
JSON.stringify = ((...args: Parameters<typeof stringify>) => {
  const text = stringify(...args);
  if (encoded === 0) setImmediate(endTurn);
  encoded += text?.length ?? 0;
  return text;
}) as typeof stringify;

function endTurn(): void {
  encodedMax = Math.max(encodedMax, encoded);
  encoded = 0;
}

const capsules: { id: string; key: string }[] = [];
for (const key of keys) {
  const id = await api.capsule("running", key);
  const agent = api.agent(id);
  agent.huge = { [Symbol.iterator]: entries };
  agent.running = { [Symbol.iterator]: processes };
  agent.onRun = (run) => {
    const chunk = Buffer.alloc(64 * 1024, control);
    let left = 256;
    const print = () => {
      run.print("stdout", chunk);
      run.print("stderr", chunk);
      if (--left > 0 && !run.cancelled) setImmediate(print);
      else run.exit(0);
    };
    print();
  };
  capsules.push({ id, key });
}

const delay = monitorEventLoopDelay({ resolution: 10 });
delay.enable();
let rssMaxBytes = 0;
let busyMaxMs = 0;
let before = process.threadCpuUsage();
setInterval(() => {
  rssMaxBytes = Math.max(rssMaxBytes, process.memoryUsage.rss());
  const { user, system } = process.threadCpuUsage(before);
  before = process.threadCpuUsage();
  busyMaxMs = Math.max(busyMaxMs, (user + system) / 1e3);
}, 5);
const warnings: string[] = [];
process.on("warning", ({ message }) => warnings.push(message));
process.on("message", () => {
  process.send?.({ warnings, rssMaxBytes, encodedMax, busyMaxMs, delayMaxMs: delay.max / 1e6 });
});
process.on("disconnect", () => process.exit());
process.send?.({ port: (api.app.server.address() as AddressInfo).port, capsules });
