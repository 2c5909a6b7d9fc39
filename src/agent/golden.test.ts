/** One example of every frame, in a file that the agent's tests read too, so that both sides agree on every byte. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe, it } from "node:test";
import { decodeDialledEvent, decodeEnding, dialRequest } from "./dial.ts";
import {
  archiveRequest,
  attributesEvent,
  chmodRequest,
  chownRequest,
  moveRequest,
  rangeRequest,
  targetEvent,
} from "./file-requests.ts";
import { encodeFrame, FrameParser, FrameType, headerBytes, listVerbsFlag, moreFlag } from "./frames.ts";
import { attachFromRequest, decodeKeptEvent, decodePositionEvent, logsRequest, screenRequest } from "./kept-records.ts";
import { decodeNotice } from "./notice.ts";
import { readPort } from "./ports.ts";
import { readLongProcess, readProcess } from "./process-records.ts";
import {
  decodeCount,
  decodeEmpty,
  decodeEntry,
  decodeExit,
  decodeFail,
  decodeFrozen,
  decodeOpenedEvent,
  decodeStarted,
  decodeStartedEvent,
  decodeTotal,
  decodeWelcome,
  decodeWoken,
  emptyRecord,
  endRecord,
  execRequest,
  hello,
  listRequest,
  ptyRequest,
  readEntry,
  request,
  resizeEvent,
  selectorRequest,
  stopEvent,
  takenEvent,
  unlistedVerbs,
  Verb,
  wakeRequest,
  windowRecord,
} from "./protocol.ts";
import { RecordReader, type RecordWriter } from "./records.ts";
import { decodeUsage } from "./usage.ts";
import { decodeWatchingEvent, readChange, watchRequest } from "./watch.ts";

const { HELLO, WELCOME, OPEN, DATA, END, WINDOW, EVENT, RESULT, FAIL, CANCEL, NOTICE } = FrameType;
const epoch = 0xb70c;
const nonce = Buffer.from("a0a1a2a3a4a5a6a7a8a9aaabacadaeaf", "hex");

const golden = new Map(
  readFileSync(new URL("../../guest/agent/golden/frames.txt", import.meta.url), "utf8")
    .split("\n")
    .filter((line) => line !== "" && !line.startsWith("#"))
    .map((line) => line.split(": ") as [name: string, hex: string])
    .map(([name, hex]) => [name, Buffer.from(hex, "hex")]),
);

function frame(type: number, stream: number, payload: Uint8Array, flags = 0): Buffer {
  return encodeFrame({ type, flags, epoch, stream }, payload);
}

function open(stream: number, asked: RecordWriter): Buffer {
  return frame(OPEN, stream, asked.finish().subarray(headerBytes));
}

const wake = {
  entropy: Uint8Array.from({ length: 32 }, (_, i) => i),
  hostname: "cl-0123456789abcdefghijklmno",
  machineId: "0123456789abcdef".repeat(2),
};
const echo = { cmd: "/bin/echo", args: ["-n", "grüße", ""] };
const env = { cmd: "env", args: [], envs: { A: "1", EMPTY: "" }, cwd: "/tmp", tag: "worker" };
const bash = { cmd: "/bin/bash", args: ["-l"], envs: { PS1: "$ " }, user: "root" };
const twoParts = request(Verb.READ).str("/in two parts").finish().subarray(headerBytes);

/** Frames of the host. */
const encoded: Record<string, Buffer> = {
  hello: frame(HELLO, 0, hello(nonce, 1)),
  hello_verbs: frame(HELLO, 0, hello(nonce, 1), listVerbsFlag),
  open_probe: open(1, request(Verb.PROBE)),
  open_wake: open(2, wakeRequest(wake, 1_767_225_600_123_456_789n)),
  open_freeze: open(3, request(Verb.FREEZE)),
  open_thaw: open(4, request(Verb.THAW)),
  open_halt: open(5, request(Verb.HALT).u32(9_500)),
  open_usage: open(6, request(Verb.USAGE)),
  open_grow: open(7, request(Verb.GROW).u64(8_589_934_592n)),
  open_exec_foreground: open(5, execRequest(echo, "foreground")),
  // This host sends EXEC_AS for it; agents still read it.
  open_exec_background: open(
    6,
    request(Verb.EXEC)
      .str("env")
      .strs([])
      .map({ A: "1", EMPTY: "" })
      .optionalStr("/tmp")
      .optionalStr("nobody")
      .optionalStr("worker")
      .u8(1),
  ),
  open_exec_stdin: open(21, execRequest({ cmd: "/bin/cat", args: [], stdin: true }, "foreground")),
  open_exec_stdin_background: open(22, execRequest({ cmd: "worker", args: [], tag: "job", stdin: true }, "background")),
  open_exec_as: open(27, execRequest({ cmd: "/bin/id", args: ["-u"], user: "1000" }, "foreground")),
  open_exec_as_all: open(28, execRequest({ ...env, user: "builder", stdin: true, survive: true }, "outcome")),
  open_exec_as_default: open(29, execRequest({ cmd: "true", args: [], survive: true }, "foreground")),
  open_input_tag: open(23, selectorRequest(Verb.INPUT, { tag: "job" })),
  open_input_pid: open(24, selectorRequest(Verb.INPUT, { pid: 4242 })),
  open_attach_pid: open(7, selectorRequest(Verb.ATTACH, { pid: 4242 })),
  open_attach_tag: open(8, selectorRequest(Verb.ATTACH, { tag: "proc-0011aabb" })),
  open_attach_from_start: open(25, attachFromRequest({ tag: "job" }, "start")),
  open_attach_from_now: open(26, attachFromRequest({ pid: 4242 }, "now")),
  open_attach_from_offset: open(27, attachFromRequest({ tag: "job" }, 5_000_000_000)),
  open_attach_from_screen: open(30, screenRequest("pty-ccdd2233")),
  open_logs: open(28, logsRequest({ tag: "job" }, { stream: "both" })),
  open_logs_tail: open(29, logsRequest({ pid: 4242 }, { stream: "stderr", tail: 10 })),
  open_await: open(17, selectorRequest(Verb.AWAIT, { tag: "worker" })),
  open_signal_pid: open(9, selectorRequest(Verb.SIGNAL, { pid: 4242 }).u8(9)),
  open_signal_tag: open(10, selectorRequest(Verb.SIGNAL, { tag: "worker" }).u8(15)),
  open_processes: open(11, request(Verb.PROCESSES)),
  open_list_processes: open(30, request(Verb.LIST_PROCESSES)),
  open_pty: open(12, ptyRequest(bash, { cols: 120, rows: 40 })),
  open_connect: open(13, request(Verb.CONNECT).str("pty-ccdd2233")),
  open_read: open(14, request(Verb.READ).str("/etc/passwd")),
  open_write: open(15, request(Verb.WRITE).str("/root/a file")),
  open_write_unnamed: open(16, request(Verb.WRITE).str("")),
  open_list: open(17, listRequest("/usr", 3, 100_000)),
  open_mkdir: open(18, request(Verb.MKDIR).str("/root/a/b")),
  open_remove: open(0xffff_ffff, request(Verb.REMOVE).str("/root/a")),
  open_stat: open(30, request(Verb.STAT).str("/root/a")),
  open_move: open(31, moveRequest({ from: "/root/a", to: "/tmp/b", overwrite: true })),
  open_chmod: open(32, chmodRequest("/root/a", 0o4755, false)),
  open_chown: open(33, chownRequest("/root/a", { owner: "builder" }, true)),
  open_write_as: open(34, request(Verb.WRITE_AS).str("/root/a file")),
  open_read_range: open(35, rangeRequest("/etc/passwd", { first: 5, last: 9 })),
  open_read_rest: open(36, rangeRequest("/etc/passwd", { first: 5 })),
  open_read_last: open(37, rangeRequest("/etc/passwd", { suffix: 7 })),
  open_archive: open(32, archiveRequest({ paths: ["/root/a", "/root/b c"], base: "/root" })),
  open_archive_whole: open(33, archiveRequest({ paths: ["/etc"] })),
  open_extract: open(34, request(Verb.EXTRACT).str("/root/to")),
  open_dial: open(39, dialRequest(8_080)),
  open_ports: open(40, request(Verb.PORTS)),
  open_watch: open(38, watchRequest({ path: "/root/a", recursive: true, directoriesMax: 8_192 })),
  open_more: frame(OPEN, 20, twoParts.subarray(0, 9), moreFlag),
  open_rest: frame(OPEN, 20, twoParts.subarray(9)),
  data_main: frame(DATA, 12, Buffer.from([3])),
  end: frame(END, 15, endRecord(5_000_000_000)),
  window: frame(WINDOW, 5, windowRecord(65_536)),
  cancel: frame(CANCEL, 5, emptyRecord),
  event_stop: frame(EVENT, 5, stopEvent),
  event_resize: frame(EVENT, 12, resizeEvent(200, 50)),
  event_taken: frame(EVENT, 12, takenEvent(300)),
  event_attributes: frame(EVENT, 34, attributesEvent({ parents: true, mode: 0o640, owner: "1000" })),
  event_attributes_none: frame(EVENT, 15, attributesEvent({})),
  event_target: frame(EVENT, 16, targetEvent("/root/later")),
};

type Decode = (payload: Buffer) => unknown;
const text: Decode = (payload) => payload.toString();
const hex: Decode = (payload) => payload.toString("hex");

function list(readItem: (fields: RecordReader) => unknown): Decode {
  return (payload) => {
    const items: unknown[] = [];
    for (const fields = new RecordReader(payload); fields.position < payload.length; ) items.push(readItem(fields));
    return items;
  };
}

const folder = {
  name: "b",
  path: "/root/a/b",
  type: "directory",
  size: 4096,
  mode: 0o40755,
  owner: "root",
  group: "root",
  mtime: 1_767_225_600,
  target: null,
};
const lib64 = {
  name: "lib64",
  path: "/usr/lib64",
  type: "symlink",
  size: 3,
  mode: 0o120777,
  owner: "root",
  group: "12345",
  mtime: -1,
  target: "lib",
};
const device = {
  ...lib64,
  name: "x",
  path: "/usr/x",
  type: "file",
  size: 0,
  mode: 0o20620,
  group: "tty",
  mtime: 0,
  target: null,
};

const stdinVerbs = new Set([...unlistedVerbs, 23, 24]);
const execAsVerbs = new Set([...stdinVerbs, 25]);
const outputVerbs = new Set([...execAsVerbs, 26, 27]);
const archiveVerbs = new Set([...outputVerbs, 43, 44]);
const fileVerbs = new Set([...archiveVerbs, 37, 38, 39, 40, 41, 42]);
const processVerbs = new Set([...fileVerbs, 28]);
const watchVerbs = new Set([...processVerbs, 45]);
const haltVerbs = new Set([...watchVerbs, 46]);
const growVerbs = new Set([...haltVerbs, 47, 48]);
const welcome = { version: 1, agent: "capsule-agent/0.1.0", awake: false, pid: 1 };

/** Frames of the guest: type, flags, stream, and the decoded payload. */
const decoded: Record<string, [type: number, flags: number, stream: number, decode: Decode, value: unknown]> = {
  welcome: [WELCOME, 0, 0, (p) => decodeWelcome(p, nonce), { ...welcome, verbs: unlistedVerbs }],
  welcome_verbs: [WELCOME, 0, 0, (p) => decodeWelcome(p, nonce), { ...welcome, verbs: unlistedVerbs }],
  welcome_stdin: [WELCOME, 0, 0, (p) => decodeWelcome(p, nonce), { ...welcome, verbs: stdinVerbs }],
  welcome_exec_as: [WELCOME, 0, 0, (p) => decodeWelcome(p, nonce), { ...welcome, verbs: execAsVerbs }],
  welcome_output: [WELCOME, 0, 0, (p) => decodeWelcome(p, nonce), { ...welcome, verbs: outputVerbs }],
  welcome_archives: [WELCOME, 0, 0, (p) => decodeWelcome(p, nonce), { ...welcome, verbs: archiveVerbs }],
  welcome_files: [WELCOME, 0, 0, (p) => decodeWelcome(p, nonce), { ...welcome, verbs: fileVerbs }],
  welcome_list_processes: [WELCOME, 0, 0, (p) => decodeWelcome(p, nonce), { ...welcome, verbs: processVerbs }],
  welcome_watch: [WELCOME, 0, 0, (p) => decodeWelcome(p, nonce), { ...welcome, verbs: watchVerbs }],
  welcome_halt: [WELCOME, 0, 0, (p) => decodeWelcome(p, nonce), { ...welcome, verbs: haltVerbs }],
  welcome_grow: [WELCOME, 0, 0, (p) => decodeWelcome(p, nonce), { ...welcome, verbs: growVerbs }],
  welcome_dial: [WELCOME, 0, 0, (p) => decodeWelcome(p, nonce), { ...welcome, verbs: new Set(Object.values(Verb)) }],
  data_stdout: [DATA, 1, 5, text, "grüße"],
  data_stderr: [DATA, 2, 5, hex, "00ff0a"],
  end: [END, 0, 15, decodeTotal, 5_000_000_000],
  window: [WINDOW, 0, 5, decodeCount, 65_536],
  event_started: [EVENT, 0, 5, decodeStartedEvent, { pid: 4242, tag: "proc-0011aabb" }],
  event_position: [EVENT, 0, 27, decodePositionEvent, { offset: 5_000_000_000 }],
  event_kept: [EVENT, 0, 28, decodeKeptEvent, { size: 1_048_576, dropped: 4_294_967_296 }],
  event_dialled: [EVENT, 0, 39, decodeDialledEvent, undefined],
  result_ended: [RESULT, 0, 39, decodeEnding, "ended"],
  result_reset: [RESULT, 0, 39, decodeEnding, "reset"],
  data_ports: [
    DATA,
    0,
    40,
    list(readPort),
    [
      { port: 22, address: "::", pid: 4242, cmd: "/usr/sbin/sshd" },
      { port: 8080, address: "127.0.0.1", pid: undefined, cmd: "" },
    ],
  ],
  event_watching: [EVENT, 0, 38, decodeWatchingEvent, "/root/a"],
  data_changes: [
    DATA,
    0,
    38,
    list(readChange),
    [
      { event: "create", path: "/root/a/b" },
      { event: "write", path: "/root/a/b" },
      { event: "rename", path: "/root/a/b", to: "/root/a/c\u{10f8ff}" },
      { event: "chmod", path: "/root/a" },
      "overflow",
      { event: "remove", path: "/root/a" },
    ],
  ],
  event_opened: [EVENT, 0, 14, decodeOpenedEvent, { size: 4_294_967_296 }],
  result_empty: [RESULT, 0, 1, decodeEmpty, undefined],
  result_woken: [RESULT, 0, 2, decodeWoken, ["/etc/hosts cannot be written: Read-only file system"]],
  result_frozen: [RESULT, 0, 3, decodeFrozen, { frozen: true }],
  result_exit: [RESULT, 0, 5, decodeExit, { exitCode: 3, guestDurationUs: 1_234_567 }],
  result_exit_killed: [RESULT, 0, 5, decodeExit, { exitCode: 137, guestDurationUs: 30_000_000 }],
  result_started: [RESULT, 0, 6, decodeStarted, { pid: 4243, tag: "worker" }],
  result_usage: [
    RESULT,
    0,
    6,
    decodeUsage,
    { memoryTotalBytes: 1e9, memoryUsedBytes: 4e8, diskTotalBytes: 4e9, diskUsedBytes: 1.5e9 },
  ],
  result_count: [RESULT, 0, 17, decodeCount, 2],
  result_bytes: [RESULT, 0, 15, decodeTotal, 5_000_000_000],
  result_entry: [RESULT, 0, 18, decodeEntry, folder],
  data_entries: [DATA, 0, 17, list(readEntry), [lib64, device]],
  data_list_processes: [
    DATA,
    0,
    30,
    list(readLongProcess),
    [
      { pid: 1, tag: "", cmd: "/init", args: [], user: "root", startedAtMs: 1_767_225_600_123, kind: "other" },
      {
        ...{ pid: 4242, tag: "proc-0011aabb", cmd: "sleep", args: ["100"] },
        ...{ user: "nobody", startedAtMs: 1_767_225_660_000, kind: "exec" },
      },
      {
        ...{ pid: 4243, tag: "pty-ccdd2233", cmd: "bash", args: [] },
        ...{ user: "1234", startedAtMs: 1_767_225_661_000, kind: "pty" },
      },
    ],
  ],
  data_processes: [
    DATA,
    0,
    11,
    list(readProcess),
    [
      { pid: 1, tag: "", cmd: "/init", args: [] },
      { pid: 4242, tag: "proc-0011aabb", cmd: "sleep", args: ["100"] },
    ],
  ],
  fail: [FAIL, 0, 14, decodeFail, { code: "not_found", message: "/etc/passwd does not exist" }],
  notice_power_off: [NOTICE, 0, 0, decodeNotice, { reboot: false }],
  notice_reboot: [NOTICE, 0, 0, decodeNotice, { reboot: true }],
};

describe("golden frames", () => {
  for (const [name, bytes] of golden) {
    it(name, () => {
      const [type, flags, stream, decode, value] = decoded[name] ?? [];
      assert.ok(encoded[name] || decode, "a frame that this side does not know");
      if (encoded[name]) assert.equal(encoded[name].toString("hex"), bytes.toString("hex"));
      let seen = 0;
      const parser = new FrameParser((...[ofType, ofFlags, ofEpoch, ofStream, payload]) => {
        seen++;
        assert.equal(ofEpoch, epoch);
        if (!decode) return;
        assert.deepEqual([ofType, ofFlags, ofStream], [type, flags, stream]);
        assert.deepEqual(decode(payload), value);
      });
      parser.push(bytes);
      assert.equal(seen, 1);
    });
  }

  it("cover every frame this side knows", () => {
    const known = new Set([...Object.keys(encoded), ...Object.keys(decoded)]);
    assert.deepEqual([...golden.keys()].sort(), [...known].sort());
  });
});
