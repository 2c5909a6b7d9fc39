/** The example of docs/operations/cluster.md in front of two hosts, of which one is ended, or answers nothing. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { resolve } from "node:path";
import { describe, test } from "node:test";
import { Daemons } from "../cluster/daemons.ts";
import { waitFor } from "../wait-for.ts";
import { missing } from "./known-clients.ts";
import { type KnownProxy, proxies, RunningProxy } from "./proxies.ts";

const page = resolve(import.meta.dirname, "../../docs/operations/cluster.md");
const nginx = proxies.find(({ name }) => name === "nginx")!;

/** Two of its hosts, without TLS, at these addresses. */
function balancerOf(addresses: readonly string[]): KnownProxy {
  const [, example = ""] = /^```nginx\n(.*?)^```$/ms.exec(readFileSync(page, "utf8")) ?? [];
  const servers = ["one", "two"].map((name, index) => [`${name}.internal:8080`, addresses[index]!] as const);
  let plain = example.replace(/^ *server three\.internal.*\n/m, "").replace(/^ *proxy_ssl_.*\n/gm, "");
  for (const [named, address] of servers) plain = plain.replace(named, address);
  plain = plain.replace("https://capsules", "http://capsules");
  return { ...nginx, configure: (_, setting) => nginx.configure(plain, setting) };
}

/** Listens, and takes no connection until it is ended. */
const deafProgram = `
const server = require("node:net").createServer().listen({ port: 0, host: "127.0.0.1", backlog: 1 }, () => {
  require("node:fs").writeSync(1, String(server.address().port) + "\\n");
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
});`;

/** The address of a machine that drops packets: the kernel drops each SYN for a listener whose backlog is full, here of 1 and 1 more. */
async function silentAddress(): Promise<{ address: string } & AsyncDisposable> {
  const child = spawn(process.execPath, ["-e", deafProgram], { stdio: ["ignore", "pipe", "inherit"] });
  const [line] = (await once(child.stdout, "data")) as [Buffer];
  const port = Number(String(line));
  const waiting = [connect(port, "127.0.0.1"), connect(port, "127.0.0.1")];
  await Promise.all(
    waiting.map((socket) =>
      once(
        socket.on("error", () => {}),
        "connect",
      ),
    ),
  );
  return {
    address: `127.0.0.1:${port}`,
    async [Symbol.asyncDispose]() {
      for (const socket of waiting) socket.destroy();
      const ended = once(child, "exit");
      child.kill("SIGKILL");
      await ended;
    },
  };
}

/** A server that takes requests and gives each one `answer`; undefined: none. Counts the requests by method. */
async function counting(answer: string | undefined): Promise<{ address: string; methods: string[] } & AsyncDisposable> {
  const [methods, sockets] = [[] as string[], new Set<Socket>()];
  const server = createServer((socket) => {
    sockets.add(socket.on("error", () => {}));
    socket.on("data", (head) => {
      methods.push(/^[A-Z]+/.exec(String(head))?.[0] ?? "");
      if (answer !== undefined)
        socket.end(`HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: ${answer.length}\r\n\r\n${answer}`);
    });
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  return {
    ...{ address: `127.0.0.1:${(server.address() as AddressInfo).port}`, methods },
    async [Symbol.asyncDispose]() {
      for (const socket of sockets) socket.destroy();
      const closed = once(server, "close");
      server.close();
      await closed;
    },
  };
}

/** Answers of a balancer whose upstreams are these, by status and body. */
async function answersOf(proxy: RunningProxy, method: string, count: number): Promise<string[]> {
  const answers: string[] = [];
  for (let asked = 0; asked < count; asked++) {
    const answer = await fetch(`${proxy.url}/v1/capsules`, { method });
    const text = await answer.text();
    answers.push(answer.status === 200 ? text : String(answer.status));
  }
  return answers;
}

describe("a load balancer in front of two hosts", { skip: missing(nginx) }, () => {
  test("requests are answered by either host, and by the other one once a host has ended", async () => {
    await using daemons = await Daemons.start({ names: ["one", "two"] });
    const [one, two] = daemons.hosts;
    const { apiKey } = one!.server;
    const addresses = daemons.hosts.map(({ server }) => new URL(server.url).host);
    await using proxy = await RunningProxy.start(balancerOf(addresses), one!.server.url, 60);
    const answered = async (status: number, method: string, path: string, body?: object) => {
      const headers = { "x-api-key": apiKey, ...(body && { "content-type": "application/json" }) };
      const answer = await fetch(`${proxy.url}${path}`, {
        method,
        headers,
        ...(body && { body: JSON.stringify(body) }),
      });
      const text = await answer.text();
      assert.equal(answer.status, status, text);
      return text;
    };
    const listed = () => answered(200, "GET", "/v1/capsules");
    for (let asked = 0; asked < 4; asked++) await listed();
    await two!.server.kill("SIGKILL");
    for (let asked = 0; asked < 8; asked++) await listed();
    for (let made = 0; made < 4; made++) {
      const { id } = JSON.parse(await answered(201, "POST", "/v1/keys", { name: `balanced ${made}` })) as {
        id: string;
      };
      await answered(204, "DELETE", `/v1/keys/${id}`);
    }
  });

  test("a request goes to the other host while one drops all packets, whatever its method", async () => {
    await using silent = await silentAddress();
    await using other = await counting("other");
    const balancer = balancerOf([silent.address, other.address]);
    for (const method of ["GET", "POST"]) {
      await using proxy = await RunningProxy.start(balancer, `http://${other.address}`, 60); // it knows of no failure yet
      assert.deepEqual(await answersOf(proxy, method, 2), ["other", "other"], method);
    }
  });

  test("a POST that a host has taken and does not answer is sent to no other one", async () => {
    await using mute = await counting(undefined);
    await using other = await counting("other");
    await using proxy = await RunningProxy.start(
      balancerOf([mute.address, other.address]),
      `http://${other.address}`,
      10, // for the other host, too
    );
    const answers = await answersOf(proxy, "POST", 2);
    await waitFor("a request to reach the host that answers none", () => mute.methods.length > 0);
    assert.equal(mute.methods.length + other.methods.length, 2, "each was sent once");
    assert.deepEqual(answers.toSorted(), ["504", "other"]);
  });
});
