/** `capsule forward` under programs that know nothing of it: psql and ssh, with servers in real VMs. */
import assert from "node:assert/strict";
import { execFile, execFileSync } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import { chmodSync, cpSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Client, type TestCapsule } from "../client.ts";
import { lacksPostgres, makeDatabases, postgresProgram } from "../cluster/postgres-server.ts";
import { Server } from "../server.ts";
import { waitFor, within } from "../wait-for.ts";
import { CommandLine, program, said } from "./command-line.ts";
import { bundle } from "./machine-programs.ts";

const timeout = 400_000;
const dropbear = "/usr/sbin/dropbear";
const lacksSsh = ["/usr/bin/ssh", dropbear].every((path) => existsSync(path))
  ? false
  : "ssh and dropbear, of Debian's packages openssh-client and dropbear-bin";

let server: Server;
let client: Client;
let line: CommandLine;
let folder: string;

before(async () => {
  server = await Server.start();
  client = await Client.connect(server.url, server.apiKey);
  line = new CommandLine({ CAPSULE_DATA: server.dataDir });
  folder = mkdtempSync(join(tmpdir(), "capsule-forward-"));
  chmodSync(folder, 0o755); // for the user of PostgreSQL
});
after(async () => {
  client?.close();
  rmSync(folder, { recursive: true, force: true });
  await server?.[Symbol.asyncDispose]();
});

/** Starts a server of this machine in a capsule. `files` are copied to its `/opt`. */
async function start(capsule: TestCapsule, files: string, ...command: string[]): Promise<void> {
  for (const words of [
    ["cp", "-r", files, `${capsule.id}:/opt`],
    ["exec", "--background", capsule.id, "--", ...command],
  ]) {
    const { code, stderr } = await line.run(words);
    assert.equal(code, 0, stderr);
  }
}

interface Result {
  code: number;
  stdout: string;
  stderr: string;
}

function run(command: string, words: string[], input: string | Buffer = ""): Promise<Result> {
  return new Promise((resolve) => {
    const options = { env: line.env, timeout: 120_000, maxBuffer: 1 << 24 };
    const child = execFile(command, words, options, (error, stdout, stderr) =>
      resolve({ code: error === null ? 0 : Number(error.code ?? -1), stdout, stderr }),
    );
    child.stdin?.on("error", () => {}).end(input);
  });
}

test("psql reaches a database in a capsule", { skip: lacksPostgres, timeout }, async (t) => {
  await using capsule = await client.capsule();
  const files = join(folder, "database");
  mkdirSync(files);
  const postgres = bundle(files, postgresProgram("postgres"), "/opt/database");
  makeDatabases(join(files, "data"), "postgres");
  const places = execFileSync(postgresProgram("pg_config"), ["--sharedir", "--pkglibdir"], { encoding: "utf8" });
  const [share = "", libraries] = places.trim().split("\n");
  cpSync(share, join(files, "share"), { recursive: true });
  const settings = ["unix_socket_directories=", "fsync=off"].flatMap((each) => ["-c", each]);
  const script = `mkdir -p ${share} ${libraries} && cp -r share/. ${share} && chown -R user data && chmod 700 data && exec sudo -u user "$@"`;
  const command = [...postgres, "-D", "/opt/database/data", ...settings];
  await start(capsule, files, "sh", "-c", `cd /opt/database && ${script}`, "sh", ...command);

  const forward = line.start(["forward", "--json", capsule.id, "0:5432"]);
  t.after(() => forward.kill("SIGKILL"));
  const closed = once(forward, "close");
  const { local } = JSON.parse(await said(forward.stdout, /\n/));
  const psql = (sql: string, input?: string) =>
    run(postgresProgram("psql"), ["-h", "127.0.0.1", "-p", String(local), "-U", "postgres", "-Atc", sql], input);
  await waitFor("the database", async () => (await psql("select 1")).code === 0);
  await psql("create table word (text text)");
  const words = Array.from({ length: 20_000 }, (_, at) => `word ${at}\n`).join("");
  assert.equal((await psql("copy word from stdin", words)).stdout, "COPY 20000\n");
  const sums = await Promise.all([1, 2, 3, 4].map((factor) => psql(`select ${factor} * count(*) from word`)));
  assert.deepEqual(
    sums.map(({ stdout }) => stdout),
    ["20000\n", "40000\n", "60000\n", "80000\n"],
  );
  assert.equal((await psql("select repeat('x', 3000000)")).stdout.length, 3_000_001);
  forward.kill("SIGINT");
  assert.deepEqual(await within("its end", closed), [0, null]);
});

/** Starts a process for each connection to port 22, as inetd does. */
const listener = `
import socket, subprocess, sys
server = socket.create_server(("127.0.0.1", 22))
while True:
    connection, _ = server.accept()
    subprocess.Popen(sys.argv[1:], stdin=connection, stdout=connection)
    connection.close()
`;

test("ssh reaches a capsule by its ProxyCommand", { skip: lacksSsh, timeout }, async () => {
  await using capsule = await client.capsule();
  const [key, files] = [join(folder, "key"), join(folder, "shell")];
  execFileSync("ssh-keygen", ["-q", "-t", "ed25519", "-N", "", "-f", key]);
  mkdirSync(files);
  const command = bundle(files, dropbear, "/opt/shell");
  cpSync(`${key}.pub`, join(files, "authorized_keys"));
  writeFileSync(join(files, "listener.py"), listener);
  const script =
    "mkdir -p -m 700 /root/.ssh /etc/dropbear && cp authorized_keys /root/.ssh && exec python3 listener.py";
  const serve = [...command, "-i", "-R", "-s"];
  await start(capsule, files, "sh", "-c", `cd /opt/shell && ${script} "$@"`, "sh", ...serve);

  const options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "IdentitiesOnly=yes"];
  const proxy = `ProxyCommand=${program} forward --stdio ${capsule.id} 22`;
  const ssh = (word: string, input?: Buffer) =>
    run(
      "ssh",
      ["-F", "none", "-i", key, ...[...options, proxy].flatMap((each) => ["-o", each]), `root@${capsule.id}`, word],
      input,
    );
  await waitFor("the server", async () => (await ssh("true")).code === 0);
  const { stdout, stderr, code } = await ssh("uname -n; echo said >&2; exit 7");
  assert.deepEqual([stdout, stderr, code], [`${capsule.id}\n`, "said\n", 7]);
  const bytes = randomBytes(1 << 20);
  const sum = createHash("sha256").update(bytes).digest("hex");
  assert.equal((await ssh("sha256sum", bytes)).stdout, `${sum}  -\n`);
  const listing = await ssh("seq 200000");
  assert.deepEqual([listing.stdout.length, listing.stdout.slice(-14)], [1_288_895, "199999\n200000\n"]);
});
