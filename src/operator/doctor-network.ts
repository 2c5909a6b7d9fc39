/** The network of doctor's capsule: that it reaches what it may, and that what it may not is denied by the relay. */
import { once } from "node:events";
import { type AddressInfo, createServer, type Server } from "node:net";
import type { NetworkState } from "../wire/network.ts";

export type Ask = (method: string, path: string, body?: object) => Promise<unknown>;

export interface NetworkFinding {
  word: "ok" | "warning";
  name: string;
  text: string;
}

const name = "network";
const greeting = "doctor was reached";
/** An address of documentation, which no policy opens. */
const reserved = "192.0.2.1";

/** A name that no zone has, which every resolver says at once. */
const noName = "doctor.invalid";
/** The C library's text for a resolver that failed or was silent. */
const unresolved = "Temporary failure in name resolution";

/** Greets each connection to a port of this machine's 127.0.0.1. */
export class Listener implements AsyncDisposable {
  readonly #server: Server;

  static async open(): Promise<Listener> {
    const server = createServer((socket) => {
      socket.on("error", () => {});
      socket.end(greeting);
    });
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    return new Listener(server);
  }

  private constructor(server: Server) {
    this.#server = server;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.close();
  }
}

/** `port`: that of a listener which the server has granted; undefined: none is granted. */
export async function tryNetwork(ask: Ask, path: string, port: number | undefined): Promise<NetworkFinding> {
  const warning = (text: string): NetworkFinding => ({ word: "warning", name, text });
  const { unsupported } = await stateAfter(ask, path, { egress: "none" });
  if (unsupported) return warning("the image has no network: build it anew by ./dev image");
  const denied = await dial(ask, path, reserved, 9);
  const { recent, effective } = await stateAfter(ask, path, {
    egress: "allowlist",
    allow: [noName, ...(port === undefined ? [] : [`host.capsule.internal:${port}`])],
  });
  if (!recent.some(({ verdict, address }) => verdict === "denied" && address === reserved))
    return warning(`the relay, which dials for capsules, has not answered (${denied}): the server's log says why`);
  if (effective.egress !== "none" && (await dial(ask, path, noName, 9)).includes(unresolved))
    return warning("capsules resolve no names: the resolvers of this machine's /etc/resolv.conf do not answer");
  if (port === undefined || effective.egress === "none")
    return {
      word: "ok",
      name,
      text: "a connection was denied by the policy; with the server stopped, doctor tries an allowed one, too",
    };
  const answer = await dial(ask, path, "host.capsule.internal", port);
  if (answer !== greeting) return warning(`a connection to this machine that the policy allows has failed: ${answer}`);
  return {
    word: "ok",
    name,
    text: "a connection was denied by the policy, and one that it allows reached this machine",
  };
}

async function stateAfter(ask: Ask, path: string, policy: object): Promise<NetworkState> {
  return (await ask("PUT", `${path}/network`, policy)) as NetworkState;
}

const program = `
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 15) as connection:
        print(connection.recv(100).decode(), end="")
except OSError as error:
    print(error, end="")`;

/** The first bytes that were received, or the error. */
async function dial(ask: Ask, path: string, host: string, port: number): Promise<string> {
  const command = { cmd: "python3", args: ["-c", program, host, String(port)] };
  const { stdout } = (await ask("POST", `${path}/exec`, command)) as { stdout: string };
  return stdout.trim();
}
