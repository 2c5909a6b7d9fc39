/**
 * Loaded into a server by NODE_OPTIONS, it records the time of events at the server's interfaces: HTTP, QEMU's processes and
 * monitors, agents, and syncs. The product has no code for it: HTTP and processes report through Node's diagnostics channels,
 * and the methods of the others are wrapped here. At exit the marks are written to the file named by `CAPSULE_BENCH_TRACE`.
 */
import { subscribe } from "node:diagnostics_channel";
import fs, { readlinkSync, writeFileSync } from "node:fs";
import { open } from "node:fs/promises";
import type { IncomingMessage } from "node:http";
import { syncBuiltinESMExports } from "node:module";
import { basename } from "node:path";
import { Channel } from "../src/agent/channel.ts";
import { Verb } from "../src/agent/protocol.ts";
import { QemuVm } from "../src/vmm/qemu-vm.ts";
import { Qmp } from "../src/vmm/qmp.ts";
import { watchCommits } from "./commit-probe.ts";
import type { Mark } from "./trace-stages.ts";

const maxMarks = 200_000;

const marks: Mark[] = [];
const file = process.env.CAPSULE_BENCH_TRACE;
if (file !== undefined && process.argv.includes("serve")) {
  watchHttp();
  watchQemu();
  watchAgents();
  await watchDisk();
  process.once("exit", () => writeFileSync(file, JSON.stringify(marks)));
}

function mark(what: string): void {
  if (marks.length < maxMarks) marks.push({ atNs: Number(process.hrtime.bigint()), what });
}

function watchHttp(): void {
  const markOf = (arrow: string) => (message: unknown) => {
    const { url = "", method } = (message as { request: IncomingMessage }).request;
    const path = url.split("?", 1)[0]!.replace(/cl-[0-9a-z]+/, "{id}");
    if (path !== "/healthz") mark(`HTTP ${arrow} ${method} ${path}`); // the bench itself polls the pool
  };
  subscribe("http.server.request.start", markOf("→"));
  subscribe("http.server.response.finish", markOf("←"));
}

function watchQemu(): void {
  subscribe("child_process", () => mark("a process is spawned"));
  const { command } = Qmp.prototype;
  Qmp.prototype.command = async function (name, ...rest) {
    mark(`QEMU → ${name}`);
    const answer = await command.call(this, name, ...rest);
    mark(`QEMU ← ${name}`);
    return answer;
  };
  const { kill } = QemuVm.prototype;
  QemuVm.prototype.kill = async function () {
    mark("QEMU → SIGKILL");
    await kill.call(this);
    mark("QEMU ← SIGKILL");
  };
}

function watchAgents(): void {
  const names = new Map<number, string>(Object.entries(Verb).map(([name, id]) => [id, name]));
  const { open } = Channel.prototype;
  Channel.prototype.open = function (verb, request, handler) {
    const name = names.get(verb) ?? String(verb);
    mark(`agent → ${name}`);
    return open.call(this, verb, request, {
      data: (...data: Parameters<typeof handler.data>) => handler.data(...data),
      failed: (error: Error) => handler.failed(error),
      drained: () => handler.drained?.(),
      event(...event: Parameters<typeof handler.event>) {
        mark(`agent ← ${name}: an event`);
        handler.event(...event);
      },
      result(...result: Parameters<typeof handler.result>) {
        mark(`agent ← ${name}`);
        handler.result(...result);
      },
    });
  };
}

/** Syncs of files and folders, and synced commits. */
async function watchDisk(): Promise<void> {
  await using any = await open(import.meta.filename);
  const handles = Object.getPrototypeOf(any) as typeof any;
  for (const name of ["sync", "datasync"] as const) {
    const method = handles[name];
    handles[name] = async function () {
      const synced = markSync(this.fd);
      await method.call(this);
      synced();
    };
  }
  for (const name of ["fsync", "fdatasync"] as const) {
    const call = fs[name];
    const marked = (fd: number, callback: fs.NoParamCallback) => {
      const synced = markSync(fd);
      call(fd, (error) => {
        synced();
        callback(error);
      });
    };
    Object.assign(fs, { [name]: marked });
  }
  syncBuiltinESMExports();
  watchCommits(mark);
}

function markSync(fd: number): () => void {
  const what = basename(readlinkSync(`/proc/self/fd/${fd}`)).replace(/cl-[0-9a-z]+/, "{id}");
  mark(`disk → ${what}`);
  return () => mark(`disk ← ${what}`);
}
