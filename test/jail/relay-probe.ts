/** Runs in the relay's place: attempts what the relay must not be able to do, and what it must. One message in, one with all outcomes out. */
import { spawnSync } from "node:child_process";
import { createSocket } from "node:dgram";
import { Resolver } from "node:dns/promises";
import { once } from "node:events";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { connect, createServer } from "node:net";
import { networkInterfaces } from "node:os";
import { Worker } from "node:worker_threads";

export interface Targets {
  secret: string;
  folder: string;
  unixSocket: string;
  tcpPort: number;
  dnsPort: number;
  /** A process outside. */
  pid: number;
}

export type Outcomes = Record<string, string>;

const attempts: Record<string, (targets: Targets) => unknown> = {
  "read a file of the data folder": ({ secret }) => readFileSync(secret),
  "read /etc/passwd": () => readFileSync("/etc/passwd"),
  "see another process": ({ pid }) => readFileSync(`/proc/${pid}/status`),
  "signal another process": ({ pid }) => process.kill(pid, 0),
  "write in the data folder": ({ folder }) => writeFileSync(`${folder}/new`, "x"),
  "write in /tmp": () => writeFileSync("/tmp/capsule-relay-probe", "x"),
  "write in its own sources": () => writeFileSync(`${import.meta.dirname}/relay-probe-new`, ""),
  "start a program": () => {
    const { error, status } = spawnSync(process.execPath, ["-e", ""]);
    if (error !== undefined) throw error;
    return status;
  },
  "listen on TCP": async () => {
    const server = createServer();
    await once(server.listen(0), "listening");
    server.close();
  },
  "bind UDP": async () => {
    const socket = createSocket("udp4");
    socket.bind(0);
    await once(socket, "listening").finally(() => socket.close());
  },
  "connect to a UNIX socket": ({ unixSocket }) => connected(connect(unixSocket)),
  "dial TCP": ({ tcpPort }) => connected(connect(tcpPort, "127.0.0.1")),
  "ask a resolver": async ({ dnsPort }) => {
    const resolver = new Resolver({ timeout: 60_000, tries: 1 });
    resolver.setServers([`127.0.0.1:${dnsPort}`]);
    return await resolver.resolve4("a.example");
  },
  "list the machine's addresses": () => {
    if (networkInterfaces().lo === undefined) throw new Error("no loopback");
  },
  "use the thread pool": async () => await readFile(import.meta.filename),
  "run a thread": async () => {
    const worker = new Worker("", { eval: true });
    await once(worker, "exit");
  },
};

async function connected(socket: ReturnType<typeof connect>): Promise<void> {
  await once(socket, "connect");
  socket.destroy();
}

async function outcome(attempt: () => unknown): Promise<string> {
  try {
    await attempt();
    return "done";
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? String(error);
  }
}

/** The kernel's account of this process. */
function ownState(): Outcomes {
  const status = readFileSync("/proc/self/status", "latin1");
  const read = (name: string) => new RegExp(`^${name}:\\s+(.*)$`, "m").exec(status)?.[1] ?? "";
  const names = ["Uid", "Groups", "CapEff", "CapPrm", "NoNewPrivs", "Seccomp"];
  const pids = readdirSync("/proc").filter((entry) => /^\d+$/.test(entry));
  return { ...Object.fromEntries(names.map((name) => [name, read(name)])), pids: pids.join(" ") };
}

process.once("message", async (targets: Targets) => {
  const outcomes: Outcomes = {};
  for (const [name, attempt] of Object.entries(attempts)) outcomes[name] = await outcome(() => attempt(targets));
  process.send!({ outcomes, state: ownState(), environment: Object.keys(process.env) });
});
process.once("disconnect", () => process.exit());
