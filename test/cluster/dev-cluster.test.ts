/** `./dev cluster` as its user has it: the lines that it prints are typed, Ctrl-C ends it, and nothing of it is left. */
import assert from "node:assert/strict";
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { after, describe, test } from "node:test";
import { promisify } from "node:util";
import { isLong } from "../faults/faults-form.ts";
import { lastingPort } from "../lasting-port.ts";
import { ownImages } from "../server.ts";
import { waitFor, within } from "../wait-for.ts";
import { lacksCeph } from "./ceph-server.ts";
import { lacksPostgres } from "./postgres-server.ts";

const root = resolve(import.meta.dirname, "../..");
/** Each host boots its template. */
const patient = { deadlineMs: 900_000 };
const skip = lacksPostgres || lacksCeph || (!isLong && "only with CAPSULE_FAULTS=long");

/** Programs that have the folder in their environment or on their command line. */
function programsIn(folder: string): string[] {
  const read = (pid: string, file: string) => {
    try {
      return readFileSync(join("/proc", pid, file), "latin1");
    } catch {
      return ""; // ended meanwhile
    }
  };
  const pids = readdirSync("/proc").filter((name) => /^\d+$/.test(name));
  const words = (pid: string) => read(pid, "cmdline").replaceAll("\0", " ");
  const found = pids.filter((pid) => `${words(pid)} ${read(pid, "environ")}`.includes(folder));
  return found.map((pid) => words(pid).slice(0, 200));
}

async function isFree(port: number): Promise<boolean> {
  const server = createServer().listen(port, "127.0.0.1");
  const isListening = await once(server, "listening").then(
    () => true,
    () => false,
  );
  server.close();
  return isListening;
}

describe("one command starts a cluster", { skip }, () => {
  let started: ChildProcess | undefined;
  const folder = mkdtempSync(join(tmpdir(), "capsule-dev-"));
  chmodSync(folder, 0o755); // PostgreSQL has a user of its own
  after(async () => {
    if (started !== undefined && started.exitCode === null && started.signalCode === null) {
      process.kill(-started.pid!, "SIGINT");
      await once(started, "exit");
    }
    rmSync(folder, { recursive: true, force: true });
  });

  test("the lines that it prints work, and Ctrl-C leaves nothing", async () => {
    const [port, peerPort] = [Number(await lastingPort(2)), Number(await lastingPort(2))];
    const own = { TMPDIR: folder, CAPSULE_PORT: String(port), CAPSULE_PEER_PORT: String(peerPort) };
    const env = { ...process.env, ...own, CAPSULE_DATA: resolve(ownImages, "..") };
    // A group of its own, all of which the terminal's Ctrl-C reaches.
    started = spawn("./dev", ["cluster"], { cwd: root, env, detached: true, stdio: ["ignore", "pipe", "inherit"] });
    const ended = once(started, "exit");
    let said = "";
    started.stdout!.setEncoding("utf8").on("data", (text: string) => {
      said += text;
    });
    await waitFor(
      () => `the lines to try, after ${said}`,
      () => {
        assert.equal(started!.exitCode, null, said);
        return said.includes("Ctrl-C");
      },
      patient,
    );

    const lines = [...said.matchAll(/^ {2}(\S.*)$/gm)].map(([, line]) => line!);
    const through = /^CAPSULE_URL=\S+ \S+(?= exec )/.exec(lines.find((line) => line.includes(" exec "))!)![0];
    const words = ["exec $ID -- sh -c 'echo kept > /run/mark'", "pause $ID", "resume $ID", "exec $ID -- cat /run/mark"];
    const more = words.map((each) => `${through} ${each}`);
    const { stdout } = await within(
      "the printed lines",
      promisify(execFile)("bash", ["-exc", [...lines, ...more].join("\n")], { cwd: folder }),
      patient,
    );
    assert.match(stdout, /^42$/m);
    assert.match(stdout, /^cl-\w+\s.*running/m);
    for (const name of ["one", "two"]) assert.match(stdout, new RegExp(`^${name}\tup\t`, "m"));
    assert.match(stdout, /^kept$/m);
    assert.ok(programsIn(folder).length > 0);

    process.kill(-started.pid!, "SIGINT");
    assert.deepEqual(await within("its end", ended, patient), [0, null]);
    assert.deepEqual(programsIn(folder), []);
    assert.deepEqual(readdirSync(folder), []);
    for (const each of [port, port + 1, peerPort, peerPort + 1]) assert.ok(await isFree(each), `port ${each}`);
  });
});
